"""The objects that can be read: by key, by age, and as chains of parents and children."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from operator import attrgetter

import msgspec

from moonpool.core.messages import Located

_COMPACT_MIN = 1024


class Object(msgspec.Struct, eq=False):
    """A committed object. Only Index changes its links.

    ``where`` is its location as Get answers it; ``capacity`` the bytes each replica occupies;
    ``used`` grows with each use in the whole pool, so that it orders objects by last use.
    """

    key: bytes
    parent_key: bytes
    where: Located
    capacity: int
    serial: int
    used: int
    used_at: float
    created_at: float
    pinned: bool = False
    alive: bool = True
    queued: bool = False
    leases: int = 0
    children: int = 0
    parent: Object | None = None
    first_child: Object | None = None
    next: Object | None = None
    previous: Object | None = None


def children_of(parent: Object) -> Iterator[Object]:
    """Yield the children of an object, which must not change meanwhile."""
    child = parent.first_child
    while child is not None:
        yield child
        child = child.next


class Index:
    """All complete objects.

    Children whose parent is not there wait in a chain under its key and are linked when it comes.
    """

    def __init__(self) -> None:
        self.spaces: dict[bytes, dict[bytes, Object]] = {}
        self.count = 0
        self.orphans: dict[bytes, Object] = {}
        self._log: list[Object] = []
        self._dead = 0
        self._cycles_possible = False

    def find(self, key: bytes) -> Object | None:
        """Return the object of a packed key; None also for bytes that are no packed key."""
        if not key:
            return None
        cut = key[0] + 1
        space = self.spaces.get(key[1:cut])
        return None if space is None else space.get(key[cut:])

    def add(self, added: Object) -> None:
        """Add an object whose key is not there; its serial must be the highest so far."""
        key = added.key
        cut = key[0] + 1
        namespace = key[1:cut]
        space = self.spaces.get(namespace)
        if space is None:
            space = self.spaces[namespace] = {}
        space[key[cut:]] = added
        self.count += 1
        self._log.append(added)
        waiting = self.orphans.pop(key, None) if self.orphans else None
        if waiting is not None:
            self._adopt(added, waiting)
        if added.parent_key:
            parent = self.find(added.parent_key)
            if parent is not None:
                self._cycles_possible |= waiting is not None
                added.parent_key = parent.key
                parent.children += 1
            self._insert(added, parent)

    def remove(self, removed: Object) -> Object | None:
        """Remove an object; return its parent. Its children wait for it to come back."""
        key = removed.key
        cut = key[0] + 1
        space = self.spaces[key[1:cut]]
        del space[key[cut:]]
        if not space:
            del self.spaces[key[1:cut]]
        self.count -= 1
        removed.alive = False
        parent = removed.parent
        if removed.parent_key:
            self._cut(removed)
        if removed.first_child is not None:
            for child in children_of(removed):
                child.parent = None
            self.orphans[key] = removed.first_child
            removed.first_child = None
            removed.children = 0
        self._dead += 1
        if self._dead > _COMPACT_MIN and self._dead > self.count:
            self._log = [each for each in self._log if each.alive]
            self._dead = 0
        return parent

    def page(self, after: int, scan: int) -> tuple[list[Object], bool]:
        """Return up to ``scan`` entries by age behind a serial, and whether more follow.

        Entries may be objects that are gone (not ``alive``).
        """
        start = bisect_right(self._log, after, key=attrgetter("serial"))
        return self._log[start : start + scan], start + scan < len(self._log)

    def __iter__(self) -> Iterator[Object]:
        return (each for each in self._log if each.alive)

    def cut_cycles(self) -> list[Object]:
        """Cut cycles of parents (no honest client makes one); return those that lost a child.

        Costs a walk over all objects, but only if a cycle may have been closed since the last.
        """
        if not self._cycles_possible:
            return []
        self._cycles_possible = False
        bereft: list[Object] = []
        seen: dict[Object, Object] = {}
        for start in self:
            each: Object | None = start
            while each is not None and each not in seen:
                seen[each] = start
                each = each.parent
            if each is not None and seen[each] is start and each.parent is not None:
                bereft.append(each.parent)
                self._cut(each)
                each.parent_key = b""
        return bereft

    def _adopt(self, parent: Object, first: Object) -> None:
        parent.first_child = first
        for child in children_of(parent):
            child.parent = parent
            child.parent_key = parent.key
            parent.children += 1

    def _insert(self, child: Object, parent: Object | None) -> None:
        """Put a child at the head of its chain: its parent's, or that of the waiting."""
        child.parent = parent
        if parent is not None:
            head, parent.first_child = parent.first_child, child
        else:
            head = self.orphans.get(child.parent_key)
            self.orphans[child.parent_key] = child
        child.next = head
        if head is not None:
            head.previous = child

    def _cut(self, child: Object) -> None:
        """Take a child out of its chain."""
        after, before, parent = child.next, child.previous, child.parent
        if after is not None:
            after.previous = before
        if before is not None:
            before.next = after
        elif parent is not None:
            parent.first_child = after
        elif after is not None:
            self.orphans[child.parent_key] = after
        else:
            del self.orphans[child.parent_key]
        if parent is not None:
            parent.children -= 1
        child.parent = child.next = child.previous = None

    def validate(self) -> None:
        """Raise AssertionError if the parts contradict each other."""
        objects = list(self)
        assert self.count == len(objects) == sum(map(len, self.spaces.values()))
        assert self._dead == len(self._log) - len(objects)
        serials = [each.serial for each in self._log]
        assert serials == sorted(set(serials))
        linked = 0
        for each in objects:
            assert self.find(each.key) is each
            if each.parent is not None:
                assert each.parent.alive
                assert each.parent.key == each.parent_key
            linked += self._validate_chain(each.first_child, each, each.key, each.children)
        for key, first in self.orphans.items():
            assert self.find(key) is None
            linked += self._validate_chain(first, None, key, None)
        assert linked == sum(bool(each.parent_key) for each in objects)

    @staticmethod
    def _validate_chain(
        first: Object | None, parent: Object | None, key: bytes, count: int | None
    ) -> int:
        before: Object | None = None
        length = 0
        while first is not None:
            assert first.alive
            assert first.parent is parent
            assert first.parent_key == key
            assert first.previous is before
            before, first = first, first.next
            length += 1
        assert count is None or length == count
        return length
