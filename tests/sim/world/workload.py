"""Clients at work: what they ask is drawn from the seed, what they are told goes to the history."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from moonpool.client import memory
from moonpool.client.memory import span_of
from moonpool.client.store import Store
from moonpool.errors import (
    ChecksumError,
    LeasedError,
    MoonpoolError,
    NoSpaceError,
    NotFoundError,
    NotReadyError,
)
from tests.sim.world.history import (
    CALL_S_MAX,
    FULL,
    OK,
    TAKEN,
    UNKNOWN,
    Attempt,
    Violation,
    number_of,
)
from tests.sim.world.hub import Process

if TYPE_CHECKING:
    from tests.sim.world.simulation import Simulation

_TAKEN, _FULL, _GONE = -705, -200, -704


class Client:
    """One client process's work; a method is an operation."""

    def __init__(self, sim: Simulation, process: Process, ways: tuple[str, ...]) -> None:
        self.sim = sim
        self.process = process
        self.rng = sim.hub.rng
        self.ways = ways
        self.done = False
        self._store: Store | None = None
        self._operations: list[tuple[float, Callable[[], None]]] = [
            (8, self.put),
            (3, self.put_batch),
            (7, self.get),
            (3, self.get_batch),
            (2, self.hold),
            (1, self.exists),
            (2, self.match),
            (2, self.remove),
        ]

    @property
    def store(self) -> Store:
        assert self._store is not None
        return self._store

    def begin(self) -> None:
        """Open the store."""
        sim = self.sim
        options: dict[str, Any] = {"timeout_s": 2.0, "put_timeout_s": 2.0, "lease_s": 3.0}
        options["put_near"] = self.rng.random() < 0.3
        with self.bounded("connect"):
            self._store = sim.cluster.connect(
                self.process.name, self.ways, wait=False, connections=2, **options
            )
        while self.store._channel.down:  # type: ignore[attr-defined]
            sim.hub.park(0.1)

    def work(self, until: float) -> None:
        """Ask until then."""
        sim = self.sim
        self.begin()
        weights = [weight for weight, _ in self._operations]
        while sim.hub.now < until:
            operation = self.rng.choices(self._operations, weights)[0][1]
            sim.hub.park(self.rng.expovariate(1 / sim.think_s))
            operation()
        self.store.close()
        self.done = True

    def bounded(self, what: str) -> Bounded:
        return Bounded(self, what)

    def key(self) -> str:
        return f"k{self.rng.randrange(self.sim.keys)}"

    def packed(self, keys: list[str]) -> list[bytes]:
        return [self.sim.packed[key] for key in keys]

    def size(self) -> int:
        return self.rng.choice(self.sim.shape.sizes)

    # --- operations ---------------------------------------------------------------------------

    def put(self) -> None:
        key = self.key()
        attempt = self.sim.history.put(key, self.size(), self.sim.hub.now)
        parent = f"k{int(key[1:]) - 1}" if key != "k0" and self.rng.random() < 0.5 else None
        replicas = 2 if self.rng.random() < self.sim.shape.copied else 1
        packed = self.sim.packed
        with self.bounded(f"put {key} #{attempt.number} {attempt.size}") as call:
            try:
                stored = self.store.put(
                    packed[key], attempt.value, parent=parent and packed[parent], replicas=replicas
                )
            except NoSpaceError:
                self._ended(call, attempt, FULL)
            except MoonpoolError as error:
                self._ended(call, attempt, UNKNOWN, error)
            else:
                self._ended(call, attempt, OK if stored else TAKEN)

    def put_batch(self) -> None:
        first = self.rng.randrange(self.sim.keys)
        keys = [f"k{i % self.sim.keys}" for i in range(first, first + self.rng.randint(2, 4))]
        sim = self.sim
        attempts = [sim.history.put(key, self.size(), sim.hub.now) for key in keys]
        with self.bounded(f"put_batch {[f'{a.key}#{a.number}' for a in attempts]}") as call:
            try:
                codes = self.store.put_batch(self.packed(keys), [each.value for each in attempts])
            except MoonpoolError as error:
                for attempt in attempts:
                    self._ended(call, attempt, UNKNOWN, error)
            else:
                outcomes = {0: OK, _TAKEN: TAKEN, _FULL: FULL}
                for attempt, code in zip(attempts, codes, strict=True):
                    self._ended(call, attempt, outcomes.get(code, UNKNOWN), None, code)

    def _ended(
        self,
        call: Bounded,
        attempt: Attempt,
        outcome: str,
        error: MoonpoolError | None = None,
        code: int = 0,
    ) -> None:
        self.sim.history.put_ended(attempt, outcome, self.sim.hub.now)
        call.said.append(outcome)
        self.sim.count[f"put {outcome}"] += 1
        if outcome == UNKNOWN:
            call.failed(f"{code} {error!r}")
        elif outcome == TAKEN:
            self.sim.history.taken_by_nobody(attempt, self.process.name)
        elif outcome == OK and call.settle():
            self.sim.history.put_twice(attempt, self.process.name)

    def get(self) -> None:
        self.get_key(self.key())

    def get_key(self, key: str) -> None:
        with self.bounded(f"get {key}") as call:
            try:
                value = self.store.get(self.sim.packed[key])
            except ChecksumError as error:
                raise Violation(f"{self.process.name} got damaged bytes: {error}") from error
            except NotFoundError as error:
                call.missed(key, repr(error))
            except (NotReadyError, NoSpaceError) as error:
                call.on_disk(key, repr(error))
            except MoonpoolError as error:
                call.failed(repr(error))
            else:
                call.read(key, value)

    def get_batch(self) -> None:
        first = self.rng.randrange(self.sim.keys)
        self.get_keys(
            [f"k{i % self.sim.keys}" for i in range(first, first + self.rng.randint(2, 5))]
        )

    def get_keys(self, keys: list[str]) -> None:
        with self.bounded(f"get_batch {keys}") as call:
            try:
                values = self.store.get_batch(self.packed(keys))
            except MoonpoolError as error:
                call.failed(repr(error))
                return
            for key, value in zip(keys, values, strict=True):
                if value is None:
                    call.on_disk(key, "None")
                else:
                    call.read(key, value)

    def hold(self) -> None:
        """Lease some objects, wait, and load them: they must all be there still."""
        first = self.rng.randrange(self.sim.keys)
        keys = [f"k{i % self.sim.keys}" for i in range(first, first + self.rng.randint(1, 3))]
        sim = self.sim
        with self.bounded(f"hold {keys}") as call:
            buffers = [np.zeros(max(self.sim.shape.sizes), np.uint8) for _ in keys]
            pieces = memory.whole([span_of(buffer, writable=True) for buffer in buffers])
            for buffer in buffers:
                self.store.register_buffer(buffer)
            began = sim.hub.now
            try:
                lease = self.store.hold(self.packed(keys), 3.0)
            except MoonpoolError as error:
                call.failed(repr(error))
                return
            try:
                sim.hub.park(self.rng.random() * 2.0)
                codes = self.store.get_pieces(self.packed(keys), pieces, lease=lease.id)
            except MoonpoolError as error:
                call.failed(repr(error))
                return
            finally:
                self._release(lease.id)
            held = lease.count if sim.hub.now - began < 2.7 else 0
            if sim.shape.disks:
                held = 0  # what is on a disk only is counted before it can be leased
            call.said.append(f"{lease.count} {codes.tolist()}")
            for i, (key, code) in enumerate(zip(keys, codes.tolist(), strict=True)):
                if code == 0:
                    call.read_start(key, buffers[i])
                elif i < held and code == _GONE and call.covered() and not call.forced(key):
                    raise Violation(f"{self.process.name}: {key} is gone under its lease: {code}")

    def _release(self, lease: int) -> None:
        with contextlib.suppress(MoonpoolError):
            self.store.release(lease)

    def exists(self) -> None:
        key = self.key()
        with self.bounded(f"exists {key}") as call:
            try:
                there = self.store.exists(self.sim.packed[key])
            except MoonpoolError as error:
                call.failed(repr(error))
                return
            call.said.append(str(there))
            if there:
                self.sim.history.present(key, call.invoked, self.process.name)
            else:
                call.missed(key, "exists: no")

    def match(self) -> None:
        """Look a prefix up."""
        first = self.rng.randrange(self.sim.keys)
        keys = [f"k{i % self.sim.keys}" for i in range(first, first + self.rng.randint(2, 6))]
        with self.bounded(f"match {keys}") as call:
            try:
                count = self.store.match_prefix(self.packed(keys))
            except MoonpoolError as error:
                call.failed(repr(error))
                return
            call.said.append(str(count))
            for key in keys[:count]:
                self.sim.history.present(key, call.invoked, self.process.name)
            if count < len(keys):
                call.missed(keys[count], f"match: {count}")

    def remove(self) -> None:
        key, force = self.key(), self.rng.random() < 0.2
        sim = self.sim
        with self.bounded(f"remove {key} {force}") as call:
            if force:
                sim.forced[key] = float("inf")
            try:
                self.store.remove(self.sim.packed[key], force=force)
            except (NotFoundError, NotReadyError) as error:
                call.missed(key, repr(error))
            except LeasedError:
                call.said.append("leased")
            except MoonpoolError as error:
                call.failed(repr(error))
            else:
                sim.note_removal(key, call.invoked)
            if force:
                sim.forced[key] = sim.hub.now


class Bounded:
    """One call: within its deadline, and said to the trace."""

    def __init__(self, client: Client, what: str) -> None:
        self.client = client
        self.what = what
        self.said: list[str] = []
        self.invoked = 0.0
        self.calm = False

    def __enter__(self) -> Bounded:
        sim = self.client.sim
        self.invoked = sim.hub.now
        self._stalled = self.client.process.stalled
        self._calm = sim.is_calm()
        sim.under_way[self] = None
        return self

    def __exit__(self, kind: Any, error: Any, _trace: Any) -> None:
        sim, process = self.client.sim, self.client.process
        if sim.hub.ending:
            return
        sim.under_way.pop(self, None)
        said = error if error is not None else " ".join(self.said)
        sim.hub.note(f"{process.name} {self.what} [{self.invoked:.6f}]: {said}")
        sim.count["calls"] += 1

    def late(self, now: float) -> bool:
        """Tell whether the call should have ended."""
        stood = self.client.process.stalled - self._stalled
        return self.client.process.alive and now - self.invoked > CALL_S_MAX + stood

    def covered(self) -> bool:
        """Tell whether a lease that was taken in this call is one that the master must know of."""
        stood = self.client.process.stalled - self._stalled
        return self._calm and self.client.sim.is_calm() and not stood

    def settle(self) -> bool:
        """Tell whether nothing was amiss for all of the call."""
        self.calm = self._calm and self.client.sim.is_calm()
        running = self.client.sim.hub
        self.calm = self.calm and running.paused_until < self.invoked
        return self.calm

    def failed(self, why: str) -> None:
        """The call failed: it must not if nothing is amiss."""
        self.said.append(why)
        self.client.sim.count["failed"] += 1
        if self.settle():
            raise Violation(f"{self.client.process.name} {self.what} failed: {why}")

    def on_disk(self, key: str, why: str) -> None:
        """The call did not get an object, for which memory may lack room if it is on a disk."""
        if self.client.sim.shape.disks:
            self.said.append(f"{key}: {why}")
        else:
            self.missed(key, why)

    def missed(self, key: str, why: str) -> None:
        """The call says that there is no such object."""
        self.said.append(f"{key}: {why}")
        if self.settle():
            self.client.sim.history.missed(key, self.invoked, self.client.process.name, why)

    def read(self, key: str, value: bytes) -> None:
        """The call returned an object."""
        sim = self.client.sim
        self.settle()
        attempt = sim.history.read(key, value, self.invoked, sim.hub.now, self.client.process.name)
        self.said.append(f"{key}#{attempt.number}")

    def read_start(self, key: str, buffer: Any) -> None:
        """The call filled the start of a buffer, which was zeros."""
        attempt = self.client.sim.history.attempts.get(number_of(buffer.tobytes()))
        size = len(buffer) if attempt is None else attempt.size
        self.read(key, buffer[:size].tobytes())

    def forced(self, key: str) -> bool:
        """Tell whether the key was removed by force meanwhile."""
        return self.client.sim.forced.get(key, -1.0) >= self.invoked
