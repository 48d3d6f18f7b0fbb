"""Handoffs: what a prefill engine computes for a decode engine, and who waits for its objects.

A handoff is open while any engine says that it works for its id; it is over when the last of them
has said so, has gone, or was not heard of for long. Waiters are answered once, whatever comes
first: the key they wait for, the end of their handoff, or the end of their patience.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TypeVar

import msgspec

from moonpool.core.messages import ENDED, FAILED, OPEN, TRANSFER_CHARS_MAX, UNHEARD, News
from moonpool.core.settings import MasterConfig

K = TypeVar("K", bytes, str)

_COMPACT_MIN = 1024
_SCAN_EVERY_S = 1.0


def claim_of(key: bytes) -> str:
    """Return the id under which engines say that they are computing this object."""
    return key.hex()[:TRANSFER_CHARS_MAX]


class Waiter(msgspec.Struct, eq=False):
    """Someone who waits for the first of ``keys``, at most until then."""

    number: int
    peer: str
    keys: list[bytes]
    transfer: str
    until: float

    @property
    def nbytes(self) -> int:
        """Bytes of its keys."""
        return sum(map(len, self.keys))


class Handoff(msgspec.Struct, eq=False):
    """One id. ``holders``: (peer, its number) of those who work for it, with when they last said
    so; when there are none, ``state`` is how it ended, at ``heard``."""

    state: int
    heard: float
    holders: dict[tuple[str, int], float]


class Handoffs:
    """All handoffs and waiters. Bounded; answers are taken by ``take_ready``."""

    def __init__(self, config: MasterConfig) -> None:
        self._config = config
        self._known: dict[str, Handoff] = {}
        self._held: dict[str, set[tuple[str, int]]] = {}
        self._lost: dict[str, float] = {}
        self._waiters: dict[int, Waiter] = {}
        self._by_key: dict[bytes, dict[int, None]] = {}
        self._by_transfer: dict[str, dict[int, None]] = {}
        self._by_peer: dict[str, tuple[int, int]] = {}
        self._nbytes = self._holders = 0
        self._heap: list[tuple[float, int]] = []
        self._ready: list[Waiter] = []
        self._numbers = 0
        self._scanned = 0.0

    @property
    def count(self) -> int:
        """Handoffs known."""
        return len(self._known)

    @property
    def waiting(self) -> int:
        """Waiters not yet answered."""
        return len(self._waiters)

    # --- handoffs -------------------------------------------------------------------------------

    def tell(self, news: News, peer: str, now: float) -> bool:
        """Take in what a peer says; False when there is no room for another id."""
        known = self._known.get(news.transfer)
        new = known is None or (peer, news.number) not in known.holders
        if news.state == OPEN and new and self._holders >= self._config.handoffs_max:
            return False
        if known is None:
            if len(self._known) >= self._config.handoffs_max and not self._make_room():
                return False
            known = self._known[news.transfer] = Handoff(news.state, now, {})
        known.heard = now
        if news.state == OPEN:
            known.state = OPEN
            self._lost.pop(peer, None)
            self._holders += new
            known.holders[peer, news.number] = now
            self._held.setdefault(peer, set()).add((news.transfer, news.number))
        else:
            self._close(news.transfer, (peer, news.number), news.state, now)
        return True

    def look(self, transfer: str, now: float) -> tuple[int, float]:
        """Return a handoff's state, and for how long nothing was heard of it."""
        known = self._known.get(transfer)
        return (UNHEARD, 0.0) if known is None else (known.state, max(0.0, now - known.heard))

    def peer_gone(self, peer: str, now: float) -> None:
        """A peer has no connection any more: what it worked on fails unless it is back soon."""
        if peer in self._held:
            self._lost[peer] = now

    def _give_peer_up(self, peer: str, now: float) -> None:
        for transfer, number in sorted(self._held.get(peer, ())):
            self._close(transfer, (peer, number), FAILED, now)

    def _close(self, transfer: str, holder: tuple[str, int], state: int, now: float) -> None:
        known = self._known[transfer]
        self._holders -= known.holders.pop(holder, None) is not None
        held = self._held.get(holder[0])
        if held is not None:
            held.discard((transfer, holder[1]))
            if not held:
                del self._held[holder[0]]
                self._lost.pop(holder[0], None)
        if known.holders:
            return
        # Last in the order of age: the oldest end is forgotten first.
        del self._known[transfer]
        self._known[transfer] = known
        known.state, known.heard = state, now
        for number in list(self._by_transfer.get(transfer, ())):
            self._release(number)

    def _make_room(self) -> bool:
        oldest = next((each for each, known in self._known.items() if not known.holders), None)
        if oldest is not None:
            del self._known[oldest]
        return oldest is not None

    # --- waiters --------------------------------------------------------------------------------

    def has_room(self, peer: str, keys: list[bytes]) -> bool:
        """Tell whether one more may wait for these keys."""
        config, nbytes = self._config, sum(map(len, keys))
        count, of_peer = self._by_peer.get(peer, (0, 0))
        return (
            len(self._waiters) < config.waiters_max
            and count < config.waiters_per_peer_max
            and self._nbytes + nbytes <= config.waiter_bytes_max
            and of_peer + nbytes <= config.waiter_bytes_max // 4
        )

    def wait(self, keys: list[bytes], transfer: str, peer: str, until: float) -> int:
        """Add a waiter; return its number."""
        self._numbers += 1
        waiter = Waiter(self._numbers, peer, keys, transfer, until)
        self._waiters[waiter.number] = waiter
        self._by_key.setdefault(keys[0], {})[waiter.number] = None
        if transfer:
            self._by_transfer.setdefault(transfer, {})[waiter.number] = None
        self._account(waiter, 1)
        if len(self._heap) > _COMPACT_MIN + 2 * len(self._waiters):
            self._heap = [entry for entry in self._heap if entry[1] in self._waiters]
            heapify(self._heap)
        heappush(self._heap, (until, waiter.number))
        return waiter.number

    def appeared(self, key: bytes) -> None:
        """Answer those who wait for a key that is there now."""
        for number in list(self._by_key.get(key, ())):
            self._release(number)

    def give_up(self, number: int) -> bool:
        """Forget a waiter; False if it is not there."""
        return number in self._waiters and self._forget(number) is not None

    def expire(self, now: float) -> None:
        """Answer those who have waited long enough; forget what is old."""
        while self._heap and self._heap[0][0] <= now:
            number = heappop(self._heap)[1]
            if number in self._waiters:
                self._release(number)
        for peer, since in list(self._lost.items()):
            if now - since >= self._config.handoff_grace_s:
                self._give_peer_up(peer, now)
        if now - self._scanned >= min(_SCAN_EVERY_S, self._config.handoff_keep_s):
            self._scanned = now
            self._forget_old(now - self._config.handoff_keep_s, now)

    def _forget_old(self, oldest: float, now: float) -> None:
        for transfer, known in list(self._known.items()):
            for holder, heard in list(known.holders.items()):
                if heard <= oldest:
                    self._close(transfer, holder, FAILED, now)
            if not known.holders and known.heard <= oldest:
                del self._known[transfer]

    def take_ready(self) -> list[Waiter]:
        """Return the waiters to answer, once."""
        if not self._ready:
            return self._ready
        ready, self._ready = self._ready, []
        return ready

    def _release(self, number: int) -> None:
        self._ready.append(self._forget(number))

    def _forget(self, number: int) -> Waiter:
        waiter = self._waiters.pop(number)
        _drop(self._by_key, waiter.keys[0], number)
        if waiter.transfer:
            _drop(self._by_transfer, waiter.transfer, number)
        self._account(waiter, -1)
        return waiter

    def _account(self, waiter: Waiter, sign: int) -> None:
        count, nbytes = self._by_peer.pop(waiter.peer, (0, 0))
        self._nbytes += sign * waiter.nbytes
        if count + sign:
            self._by_peer[waiter.peer] = count + sign, nbytes + sign * waiter.nbytes

    def validate(self) -> None:
        """Raise AssertionError if the parts contradict each other."""
        by_key: dict[bytes, set[int]] = {}
        by_transfer: dict[str, set[int]] = {}
        by_peer: dict[str, tuple[int, int]] = {}
        for number, waiter in self._waiters.items():
            assert waiter.number == number
            by_key.setdefault(waiter.keys[0], set()).add(number)
            if waiter.transfer:
                by_transfer.setdefault(waiter.transfer, set()).add(number)
            count, nbytes = by_peer.get(waiter.peer, (0, 0))
            by_peer[waiter.peer] = count + 1, nbytes + waiter.nbytes
        assert {key: set(numbers) for key, numbers in self._by_key.items()} == by_key
        assert {name: set(numbers) for name, numbers in self._by_transfer.items()} == by_transfer
        assert self._by_peer == by_peer
        assert self._nbytes == sum(each for _, each in by_peer.values())
        assert {number for _, number in self._heap} >= set(self._waiters)
        assert len(self._waiters) <= self._config.waiters_max
        held: dict[str, set[tuple[str, int]]] = {}
        for transfer, known in self._known.items():
            assert (known.state == OPEN) == bool(known.holders)
            assert known.state in (OPEN, ENDED, FAILED)
            for peer, number in known.holders:
                held.setdefault(peer, set()).add((transfer, number))
            waits = self._by_transfer.get(transfer)
            assert not waits or known.state == OPEN
        assert self._held == held
        assert self._holders == sum(map(len, held.values())) <= self._config.handoffs_max
        assert set(self._lost) <= set(held)
        assert len(self._known) <= self._config.handoffs_max


def _drop(index: dict[K, dict[int, None]], name: K, number: int) -> None:
    numbers = index[name]
    del numbers[number]
    if not numbers:
        del index[name]
