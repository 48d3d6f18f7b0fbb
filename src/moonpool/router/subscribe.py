"""Subscribing to engines' KV events over ZeroMQ."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import importlib
import logging
from collections.abc import AsyncIterator
from typing import Any

from moonpool.router.following import Agrees, Follower
from moonpool.router.index import PrefixIndex
from moonpool.router.instance import Instance
from moonpool.router.members import Members
from moonpool.router.metrics import RouterMetrics

SYNC_S = 1.0
REPLAY_TIMEOUT_S = 5.0
RETRY_S = 1.0
BATCHES_QUEUED = 100_000
BATCH_BYTES_MAX = 64 << 20
END = (-1).to_bytes(8, "big", signed=True)

log = logging.getLogger("moonpool.router.events")


def available() -> bool:
    """Return whether pyzmq is installed."""
    try:
        _zmq()
    except ImportError:
        return False
    return True


def _zmq() -> Any:
    """Return pyzmq, whose constants type checkers do not see."""
    importlib.import_module("zmq.asyncio")
    return importlib.import_module("zmq")


class Subscriptions:
    """A subscription for each publisher of each instance; they come and go with ``members``."""

    def __init__(
        self,
        members: Members,
        index: PrefixIndex,
        metrics: RouterMetrics,
        agrees: Agrees | None = None,
        *,
        sync_s: float = SYNC_S,
    ) -> None:
        self._members, self._index, self._metrics = members, index, metrics
        self._agrees = agrees
        self._sync_s = sync_s
        self._tasks: dict[tuple[Instance, str, str], asyncio.Task[None]] = {}
        self._followers: dict[tuple[Instance, str, str], Follower] = {}
        self._warned: set[Instance] = set()

    def describe(self, instance: Instance) -> dict[str, object]:
        """Return how an instance's events are followed, for people."""
        mine = [each for key, each in self._followers.items() if key[0] is instance]
        if not mine:
            why = "no endpoint known" if instance.asked else "not asked yet"
            return {"followed": False, "why": why}
        counts = [dataclasses.asdict(each.counts) for each in mine]
        total = {name: sum(each[name] for each in counts) for name in counts[0]}
        return {"followed": True, "alive": all(each.alive for each in mine), **total}

    async def run(self) -> None:
        """Follow until cancelled."""
        context = _zmq().asyncio.Context()
        try:
            while True:
                self._sync(context)
                self._report()
                await asyncio.sleep(self._sync_s)
        finally:
            for task in self._tasks.values():
                task.cancel()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)
            context.destroy(linger=0)

    def _sync(self, context: Any) -> None:
        wanted = {
            (instance, *endpoints)
            for instance in self._members.instances
            for endpoints in instance.facts.events
        }
        for key in self._tasks.keys() - wanted:
            self._tasks.pop(key).cancel()
            del self._followers[key]
            if all(other[0] is not key[0] for other in self._followers):
                with contextlib.suppress(KeyError):
                    self._metrics.forget(key[0].url)
        for key in wanted - self._tasks.keys():
            follower = Follower(key[0], self._index, self._agrees)
            self._followers[key] = follower
            self._tasks[key] = asyncio.create_task(self._follow(context, key, follower))

    def _report(self) -> None:
        for (instance, _, _), follower in self._followers.items():
            self._metrics.events_alive.labels(instance.url).set(follower.alive)
            counts = follower.counts
            if counts.differing > counts.agreeing and instance not in self._warned:
                self._warned.add(instance)
                log.warning(
                    "%s hashes blocks in another way than the router (algorithm, seed or "
                    "version): its KV events are of no use, own routing history is used",
                    instance.url,
                )

    async def _follow(
        self, context: Any, key: tuple[Instance, str, str], follower: Follower
    ) -> None:
        failure = _zmq().ZMQError
        instance, publisher, replay = key
        while True:
            try:
                async with _socket(context, "SUB", publisher) as live:
                    await self._listen(context, live, replay, instance, follower)
            except (OSError, failure) as error:
                log.warning("%s: KV events from %s: %s", instance.url, publisher, error)
            await asyncio.sleep(RETRY_S)

    async def _listen(
        self, context: Any, live: Any, replay: str, instance: Instance, follower: Follower
    ) -> None:
        await self._replay(context, replay, follower)
        while True:
            frames = await live.recv_multipart()
            if len(frames) != 3 or len(frames[1]) != 8:
                follower.counts.garbage += 1
                continue
            number, payload = int.from_bytes(frames[1], "big"), frames[2]
            self._metrics.event_batches.labels(instance.url).inc()
            if not follower.take(number, payload):
                self._metrics.event_gaps.labels(instance.url).inc()
                lost = follower.counts.lost
                await self._replay(context, replay, follower)
                follower.resume(number, payload)
                self._metrics.events_lost.labels(instance.url).inc(follower.counts.lost - lost)

    async def _replay(self, context: Any, endpoint: str, follower: Follower) -> None:
        """Ask for all batches from the first that is missing; take what comes in time."""
        if not endpoint:
            return
        async with _socket(context, "DEALER", endpoint) as socket:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(REPLAY_TIMEOUT_S):
                    await socket.send_multipart([b"", follower.replay_from().to_bytes(8, "big")])
                    while len(frames := await socket.recv_multipart()) == 4 and frames[2] != END:
                        follower.replayed(int.from_bytes(frames[2], "big"), frames[3])


@contextlib.asynccontextmanager
async def _socket(context: Any, kind: str, endpoint: str) -> AsyncIterator[Any]:
    zmq = _zmq()
    socket = context.socket(getattr(zmq, kind))
    try:
        options: list[tuple[int, Any]] = [
            (zmq.LINGER, 0),
            (zmq.RCVHWM, BATCHES_QUEUED),
            (zmq.MAXMSGSIZE, BATCH_BYTES_MAX),
        ]
        if kind == "SUB":
            options.append((zmq.SUBSCRIBE, b""))
        for name, value in options:
            socket.setsockopt(name, value)
        try:
            socket.connect(endpoint)
        except zmq.ZMQError as error:
            raise OSError(error.errno, f"{endpoint}: {error}") from None
        yield socket
    finally:
        socket.close(0)
