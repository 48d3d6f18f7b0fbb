"""Groups: objects that are leased together, and go together when room is made.

Few objects have one, so this is kept beside them. What a node brings back has none any more: its
group was this master's knowledge.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from moonpool.core.eviction import is_evictable_leaf
from moonpool.core.index import Object

GROUP_BYTES_MAX: Final = 1024


class Groups:
    """Which objects are in which group. One object is in one group for all its life."""

    def __init__(self) -> None:
        self.of: dict[Object, bytes] = {}
        self.parked: dict[Object, None] = {}
        """What would be evicted if none of its group were leased, pinned or continued."""
        self._members: dict[bytes, dict[Object, None]] = {}

    def add(self, added: Object, group: bytes) -> None:
        """Put an object of the index into a group."""
        self.of[added] = group
        self._members.setdefault(group, {})[added] = None

    def forget(self, removed: Object) -> list[Object]:
        """Forget an object; return those of its group that may go now for what it knows."""
        group = self.of.pop(removed, None)
        if group is None:
            return []
        self.parked.pop(removed, None)
        members = self._members[group]
        del members[removed]
        if not members:
            del self._members[group]
        return self._unparked(members)

    def together(self, one: Object) -> list[Object]:
        """Return an object with all of its group, itself first."""
        group = self.of.get(one)
        if group is None:
            return [one]
        return [one, *(each for each in self._members[group] if each is not one)]

    def widened(self, some: Iterable[Object]) -> list[Object]:
        """Return objects with all of their groups, each once."""
        found: dict[Object, None] = {}
        for each in some:
            if each not in found:
                found[each] = None
                group = self.of.get(each)
                if group is not None:
                    found.update(self._members[group])
        return list(found)

    def may_go(self, one: Object) -> bool:
        """Tell whether nothing keeps any of an object's group."""
        return all(is_evictable_leaf(each) for each in self.together(one)[1:])

    def freed(self, some: list[Object]) -> list[Object]:
        """Return objects that may be evictable again, with those that waited for them."""
        waiting = [each for one in some for each in self._unparked(self.together(one))]
        return [*some, *waiting] if waiting else some

    def _unparked(self, some: Iterable[Object]) -> list[Object]:
        found = [each for each in some if each in self.parked]
        for each in found:
            del self.parked[each]
        return found

    def validate(self, objects: Iterable[Object]) -> None:
        """Raise AssertionError if one is not in the index, or the parts contradict each other."""
        known = set(objects)
        assert all(each in known for each in self.of)
        assert all(each in self.of for each in self.parked)
        assert not any(self.may_go(each) for each in self.parked)
        assert sum(map(len, self._members.values())) == len(self.of)
        for group, members in self._members.items():
            assert members
            assert all(self.of[each] == group for each in members)
