"""Leases: what planned loads hold, so that eviction passes it by."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heappop, heappush

import msgspec

from moonpool.core.index import Object

_COMPACT_MIN = 1024


class Lease(msgspec.Struct, eq=False):
    """Objects that one peer holds until ``expires``; ``number`` is the peer's name for it."""

    peer: str
    number: int
    expires: float
    objects: set[Object]
    live: bool = True


class LeaseBook:
    """All live leases. Ending one returns the objects that nobody leases any more."""

    def __init__(self, leases_max: int, objects_max: int) -> None:
        self.count = 0
        self.horizon = 0.0
        """All leases that were taken up to now have ended by then."""
        self._leases_max = leases_max
        self._objects_max = objects_max
        self._peers: dict[str, dict[int, Lease]] = {}
        self._held: dict[str, int] = {}
        # By expiry; an entry of a lease that was prolonged or ended is corrected when it comes up.
        self._heap: list[tuple[float, int, Lease]] = []
        self._pushed = 0

    def peers(self) -> Iterable[str]:
        """Return the peers that hold leases."""
        return self._peers

    def has_room(self, peer: str, number: int, objects: int) -> bool:
        """Tell whether a peer may lease this many more objects under this number."""
        leases = self._peers.get(peer)
        if leases is None:
            return objects <= self._objects_max
        new = number not in leases
        return (
            len(leases) + new <= self._leases_max
            and self._held.get(peer, 0) + objects <= self._objects_max
        )

    def take(self, peer: str, number: int, objects: Iterable[Object], expires: float) -> None:
        """Lease objects, prolonging the lease if the peer has one of this number already."""
        if expires > self.horizon:
            self.horizon = expires
        leases = self._peers.get(peer)
        if leases is None:
            leases = self._peers[peer] = {}
        lease = leases.get(number)
        if lease is None:
            lease = leases[number] = Lease(peer, number, expires, set())
            self.count += 1
            self._push(lease)
        elif expires > lease.expires:
            lease.expires = expires
        added = set(objects) - lease.objects
        for each in added:
            each.leases += 1
        lease.objects |= added
        self._held[peer] = self._held.get(peer, 0) + len(added)

    def release(self, peer: str, number: int) -> list[Object]:
        """End a lease; one that is not there is no error."""
        lease = self._peers.get(peer, {}).get(number)
        return [] if lease is None else self._end(lease)

    def release_peer(self, peer: str) -> list[Object]:
        """End all leases of a peer."""
        freed: list[Object] = []
        for lease in list(self._peers.get(peer, {}).values()):
            freed += self._end(lease)
        return freed

    def expire(self, now: float) -> tuple[int, list[Object]]:
        """End the leases whose time is over; return how many, and what nobody leases now."""
        count = 0
        freed: list[Object] = []
        while self._heap and self._heap[0][0] <= now:
            lease = heappop(self._heap)[2]
            if not lease.live:
                continue
            if lease.expires > now:
                self._push(lease)
                continue
            count += 1
            freed += self._end(lease)
        return count, freed

    def _push(self, lease: Lease) -> None:
        if len(self._heap) > _COMPACT_MIN + 2 * self.count:
            self._heap = [entry for entry in self._heap if entry[2].live]
            heapify(self._heap)
        self._pushed += 1
        heappush(self._heap, (lease.expires, self._pushed, lease))

    def _end(self, lease: Lease) -> list[Object]:
        lease.live = False
        self.count -= 1
        leases = self._peers[lease.peer]
        del leases[lease.number]
        self._held[lease.peer] -= len(lease.objects)
        if not leases:
            del self._peers[lease.peer]
            del self._held[lease.peer]
        freed: list[Object] = []
        for each in lease.objects:
            each.leases -= 1
            if not each.leases and each.alive:
                freed.append(each)
        # Sets have no order of their own that a replay could rely on.
        freed.sort(key=lambda each: each.serial)
        lease.objects = set()
        return freed

    def validate(self, objects: Iterable[Object]) -> None:
        """Raise AssertionError if the parts contradict each other or the objects' counts."""
        counts: dict[Object, int] = {}
        queued = {lease for _, _, lease in self._heap}
        total = 0
        for peer, leases in self._peers.items():
            assert leases
            assert len(leases) <= self._leases_max
            held = 0
            for number, lease in leases.items():
                assert lease.live
                assert (lease.peer, lease.number) == (peer, number)
                assert lease in queued
                held += len(lease.objects)
                for each in lease.objects:
                    counts[each] = counts.get(each, 0) + 1
            assert self._held[peer] == held <= self._objects_max
            total += len(leases)
        assert self.count == total
        assert set(self._held) == set(self._peers)
        for each in objects:
            assert each.leases == counts.pop(each, 0)
        for each, count in counts.items():
            assert not each.alive
            assert each.leases == count
