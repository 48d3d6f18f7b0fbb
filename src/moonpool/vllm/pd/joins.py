"""The worker's side of a request that is filled by two: its prefix by the pool, the rest by a peer.

vLLM must be told once, when nobody writes into the request's blocks any more. The pool keeps its
own deadlines. A peer may never answer; past the deadline its part is given up: the request is
computed anew in other blocks, and these are kept from use until the peer has let go of them.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

import numpy as np

from moonpool.vllm.objects import I32
from moonpool.vllm.pd.pulse import Address

PATIENCE_S = 2.0
"""Most transfers have ended by then."""


@dataclass(frozen=True, slots=True)
class Join:
    """What the scheduler's side has planned for a request.

    block_ids: the engine's blocks past its own hit; the first ``split`` of them come from the
    pool, the others from the peer. timeout_s: how long the peer may take; address: where the
    instance listens that it waits for.
    """

    serial: int
    request_id: str
    block_ids: I32
    split: int
    timeout_s: float
    address: Address | None = None


@dataclass(slots=True)
class _Open:
    join: Join
    began: float
    deadline: float
    pool_done: bool
    bad: set[int] = field(default_factory=set)
    peer_done: bool = False
    peer_failed: bool = False
    prefix: frozenset[int] = frozenset()
    suffix: frozenset[int] = frozenset()


@dataclass(slots=True)
class Outcome:
    """What is over. finished: for vLLM; those in ``restarted`` begin anew, of the others the blocks
    in ``bad`` are computed. ended: serials; abandoned: those among them that the peer may still
    write to; released: serials abandoned earlier that it cannot write to any more."""

    finished: set[str] = field(default_factory=set)
    restarted: set[str] = field(default_factory=set)
    bad: set[int] = field(default_factory=set)
    ended: list[int] = field(default_factory=list)
    failed: list[int] = field(default_factory=list)
    abandoned: list[int] = field(default_factory=list)
    released: list[int] = field(default_factory=list)


class Joins:
    """All requests of a worker that wait for both. Called by the worker's thread only."""

    def __init__(self) -> None:
        """There are none."""
        self._open: dict[str, _Open] = {}
        self._abandoned: dict[str, list[int]] = {}
        self._out = Outcome()
        self._newest = 0

    def __len__(self) -> int:
        """Requests that wait."""
        return len(self._open)

    def add(self, join: Join, now: float) -> None:
        """Begin to wait; a join that was seen before is ignored."""
        if join.serial <= self._newest:
            return
        self._newest = join.serial
        ids = [int(block) for block in join.block_ids]
        self._open[join.request_id] = _Open(
            join,
            now,
            now + join.timeout_s,
            pool_done=join.split == 0,
            prefix=frozenset(ids[: join.split]),
            suffix=frozenset(ids[join.split :]),
        )

    def pool_ended(self, request_ids: Collection[str], bad: Collection[int]) -> None:
        """Take in the pool's loads that ended, and the blocks they did not fill."""
        left = set(bad)
        for one in self._open.values() if left else ():
            one.bad |= left & one.prefix
            left -= one.prefix
        self._out.bad |= left
        for request_id in request_ids:
            waiting = self._open.get(request_id)
            if waiting is None:
                self._out.finished.add(request_id)
            else:
                waiting.pool_done = True

    def peer_ended(
        self, request_ids: Collection[str], failed: Collection[str], bad: Collection[int]
    ) -> None:
        """Take in the peer's transfers that ended, those that failed, by request or by block."""
        wrong = set(bad)
        for one in self._open.values() if wrong else ():
            one.peer_failed |= not wrong.isdisjoint(one.suffix)
        for request_id in {*request_ids, *failed}:
            waiting = self._open.get(request_id)
            if waiting is not None and not waiting.peer_done:
                waiting.peer_done = True
                waiting.peer_failed |= request_id in failed
            elif request_id in self._abandoned:
                self._out.released += self._abandoned.pop(request_id)

    def addresses(self, now: float) -> set[Address]:
        """Return where the instances listen that peers have been waiting for for a while."""
        return {
            one.join.address
            for one in self._open.values()
            if one.join.address and not one.peer_done and now - one.began >= PATIENCE_S
        }

    def give_up(self, addresses: Collection[Address], now: float) -> None:
        """Wait no longer for instances that are gone."""
        for one in self._open.values() if addresses else ():
            if one.join.address in addresses:
                one.deadline = min(one.deadline, now)

    def take(self, now: float) -> Outcome:
        """Return what is over since the last call."""
        for request_id, one in list(self._open.items()):
            late = now >= one.deadline and not one.peer_done
            if one.pool_done and (one.peer_done or late):
                del self._open[request_id]
                self._end(one, late=late)
        out, self._out = self._out, Outcome()
        return out

    def _end(self, one: _Open, *, late: bool) -> None:
        join, out = one.join, self._out
        out.finished.add(join.request_id)
        out.ended.append(join.serial)
        if late:
            out.restarted.add(join.request_id)
            out.abandoned.append(join.serial)
            self._abandoned.setdefault(join.request_id, []).append(join.serial)
            return
        out.bad |= one.bad
        if one.peer_failed:
            out.bad |= one.suffix
            out.failed.append(join.serial)


def make(
    serial: int,
    request_id: str,
    block_ids: list[int],
    split: int,
    timeout_s: float,
    address: Address | None = None,
) -> Join:
    """Return a join; ``block_ids`` as plain numbers."""
    return Join(serial, request_id, np.array(block_ids, np.int32), split, timeout_s, address)
