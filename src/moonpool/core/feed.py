"""What the pool gains and loses, numbered, for those who keep an index of it.

Only engines' blocks count. Nothing is recorded while nobody asks; what is recorded is bounded, and
who asks too late learns that changes are lost to it.
"""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import Final

from moonpool.core import codes
from moonpool.core.index import Index, Object
from moonpool.core.keys import DIGEST_BYTES
from moonpool.core.messages import Changes, Failed, GetChanges, GetKeys, Keys
from moonpool.core.segments import Segments

KEPT: Final = 262_144
PAGE_MAX: Final = 8192
IDLE_S: Final = 60.0
"""Nobody has asked for so long: no more is recorded until somebody does."""
BLOCK_KEY_BYTES: Final = 1 + 2 * DIGEST_BYTES
GONE: Final = 0
DISK: Final = -1
"""Stands for a segment where a block is on a disk only."""


def is_block(key: bytes) -> bool:
    """Return whether a packed key is that of an engine's block."""
    return len(key) == BLOCK_KEY_BYTES and key[0] == DIGEST_BYTES


class Feed:
    """The latest changes: (key, handle of the segment it came to, GONE for one that is gone).

    ``next`` is the number of the change to come.
    """

    def __init__(self, kept: int = KEPT) -> None:
        self.active = False
        self.next = 1
        self._changes: deque[tuple[bytes, int]] = deque(maxlen=kept)
        self._asked = 0.0

    @property
    def first(self) -> int:
        """The number of the oldest change that is kept."""
        return self.next - len(self._changes)

    def note(self, key: bytes, handle: int) -> None:
        """Record a change; call only while ``active``."""
        if is_block(key):
            self._changes.append((key, handle))
            self.next += 1

    def ask(self, now: float) -> None:
        """Take note that somebody wants to know."""
        self.active, self._asked = True, now

    def rest(self, now: float) -> None:
        """Stop recording where nobody asks any more."""
        if self.active and now - self._asked >= IDLE_S:
            self.active = False
            self._changes.clear()
            self.next += 1

    def since(self, number: int, limit: int) -> list[tuple[bytes, int]]:
        """Return changes from a number on that is kept."""
        begin = number - self.first
        return list(islice(self._changes, begin, begin + limit))


def changes(feed: Feed, segments: Segments, request: GetChanges, epoch: int) -> Changes:
    """Return the changes from a number on; ``lost`` where they are not all there any more."""
    number = request.first
    if not feed.first <= number <= feed.next:
        return Changes(epoch, feed.next, feed.next, [], [], [], lost=True)
    found = feed.since(number, min(max(request.limit, 1), PAGE_MAX))
    hosts = _Hosts(segments)
    places = [hosts.place(handle) for _, handle in found]
    keys = [key for key, _ in found]
    return Changes(epoch, number, number + len(found), keys, places, hosts.names)


def keys(index: Index, segments: Segments, request: GetKeys) -> Keys | Failed:
    """Return a page of the blocks that are in memory, by age."""
    if request.after < -1:
        return Failed(codes.INVALID, f"objects after {request.after}")
    page, more = index.page(request.after, min(max(request.limit, 1), PAGE_MAX))
    hosts = _Hosts(segments)
    alive = [each for each in page if each.alive and is_block(each.key)]
    places = [hosts.place(_handle(each)) for each in alive]
    following = page[-1].serial if page and more else 0
    return Keys([each.key for each in alive], places, hosts.names, following)


def _handle(found: Object) -> int:
    return found.slots[0].segment


class _Hosts:
    """Numbers for the hosts that an answer names; 0 stands for none."""

    def __init__(self, segments: Segments) -> None:
        self.names: list[str] = []
        self._segments = segments
        self._places: dict[int, int] = {GONE: 0}

    def place(self, handle: int) -> int:
        """Return 1 + the place of a segment's host among ``names``."""
        found = self._places.get(handle)
        if found is None:
            segment = self._segments.by_handle.get(handle)
            address = segment.info.address if segment is not None else ""
            self.names.append(address.rpartition(":")[0])
            found = self._places[handle] = len(self.names)
        return found
