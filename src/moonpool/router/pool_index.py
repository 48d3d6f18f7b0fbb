"""Which blocks the pool has, as far as its changes tell. No sockets here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from moonpool.core.keys import DIGEST_BYTES
from moonpool.core.messages import Changes, Keys

BLOCKS_MAX = 2_000_000
HOSTS_MAX = 4096


@dataclass(slots=True)
class PoolCounts:
    """What happened to the feed of changes so far. gaps: times that changes were lost or another
    master answered; snapshots: times that all blocks were asked for."""

    changes: int = 0
    gaps: int = 0
    snapshots: int = 0


class PoolIndex:
    """Blocks by namespace, each with its host. ``next`` is the change to ask for; ``synced``:
    nothing is missing.

    After a gap all is asked for again: ``begin``, pages, ``end``. Changes that came meanwhile are
    applied afterwards, in order, so that the result is right whatever the pages had of them.
    """

    def __init__(self, blocks_max: int = BLOCKS_MAX) -> None:
        self.counts = PoolCounts()
        self.next = 0
        self.synced = False
        self.blocks = 0
        self.full = False
        self._epoch = -1
        self._blocks_max = blocks_max
        self._spaces: dict[bytes, dict[bytes, int]] = {}
        self._hosts: list[str] = [""]
        self._numbers: dict[str, int] = {"": 0}

    @property
    def namespaces(self) -> list[bytes]:
        """The namespaces that have blocks."""
        return [*self._spaces]

    def take(self, changes: Changes) -> bool:
        """Apply changes; return False if all blocks must be asked for first."""
        if changes.lost or changes.epoch != self._epoch or changes.first != self.next:
            self.counts.gaps += self.synced
            self.synced = False
            self._epoch, self.next = changes.epoch, changes.next
            return False
        self.next = changes.next
        self.counts.changes += len(changes.keys)
        self._apply(changes)
        return True

    def begin(self) -> None:
        """Forget everything, before all blocks come page by page."""
        self._spaces.clear()
        self.blocks, self.full = 0, False
        self.counts.snapshots += 1

    def page(self, keys: Keys) -> None:
        """Take a page of all blocks."""
        self._apply(keys)

    def end(self) -> None:
        """All pages have come."""
        self.synced = True

    def prefix(self, namespace: bytes, hashes: Sequence[bytes], stride: int) -> int:
        """Return how many leading blocks of a prompt are there, as the master would (``Match``)."""
        space = self._spaces.get(namespace)
        if space is None:
            return 0
        count, total = 0, len(hashes)
        while count + stride <= total and hashes[count + stride - 1][:DIGEST_BYTES] in space:
            count += stride
        for last in range(min(count + stride - 1, total) - 1, count - 1, -1):
            if hashes[last][:DIGEST_BYTES] in space:
                return last + 1
        return count

    def hosts(
        self, namespace: bytes, hashes: Sequence[bytes], stride: int, blocks: int
    ) -> dict[str, int]:
        """Return how many of a prompt's first ``blocks`` each host has, by its address; those on
        disks only stand under ""."""
        space = self._spaces.get(namespace, {})
        found: dict[str, int] = {}
        ends = [*range(stride, blocks + 1, stride)]
        if not ends or ends[-1] != blocks:
            ends.append(blocks)
        begin = 0
        for end in ends:
            number = space.get(hashes[end - 1][:DIGEST_BYTES]) if end else None
            if number is not None:
                name = self._hosts[number]
                found[name] = found.get(name, 0) + end - begin
            begin = end
        return found

    def _apply(self, told: Changes | Keys) -> None:
        numbers = [0, *(self._host(name) for name in told.hosts)]
        cut = 1 + DIGEST_BYTES
        for key, place in zip(told.keys, told.places, strict=False):
            space, digest = key[1:cut], key[cut:]
            if place:
                if 0 < place < len(numbers):
                    self._add(space, digest, numbers[place])
            else:
                self._remove(space, digest)

    def _add(self, namespace: bytes, digest: bytes, host: int) -> None:
        space = self._spaces.setdefault(namespace, {})
        if digest not in space:
            if self.blocks >= self._blocks_max:
                self.full = True
                return
            self.blocks += 1
        space[digest] = host

    def _remove(self, namespace: bytes, digest: bytes) -> None:
        space = self._spaces.get(namespace)
        if space is not None and space.pop(digest, None) is not None:
            self.blocks -= 1
            if not space:
                del self._spaces[namespace]

    def _host(self, name: str) -> int:
        number = self._numbers.get(name)
        if number is None:
            if len(self._hosts) >= HOSTS_MAX:
                return 0
            number = self._numbers[name] = len(self._hosts)
            self._hosts.append(name)
        return number
