"""Objects whose session has ended: they go before all others, children before their parents."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable

from moonpool.core.eviction.chains import is_evictable_leaf
from moonpool.core.index import Object


class Released:
    """What nobody is expected to use again. Whatever is used all the same is an ordinary object
    from then on: the stamp of its last use is not the one that it was released with."""

    def __init__(self) -> None:
        self.stamps: dict[Object, int] = {}
        self.ready: OrderedDict[Object, None] = OrderedDict()
        """Those that may go at once."""

    def add(self, released: Iterable[Object]) -> None:
        """Release objects of the index."""
        for each in released:
            self.stamps[each] = each.used
            if is_evictable_leaf(each):
                self.ready[each] = None

    def takes(self, offered: Object) -> bool:
        """Queue a released object that may go by itself; False if it is none, or may not now."""
        stamp = self.stamps.get(offered)
        if stamp is None:
            return False
        if stamp != offered.used:
            self.forget(offered)
            return False
        if not is_evictable_leaf(offered):
            return False
        self.ready[offered] = None
        return True

    def pop(self, back: Callable[[Object], None]) -> Object | None:
        """Take out one that may be evicted; ``back`` is called with those that were used since, or
        may not go now. Whoever is not evicted then is offered again."""
        while self.ready:
            each, _ = self.ready.popitem(last=False)
            if self.stamps.get(each) == each.used and is_evictable_leaf(each):
                return each
            back(each)
        return None

    def forget(self, removed: Object) -> None:
        """Forget an object: it leaves the index, or is an ordinary one."""
        self.stamps.pop(removed, None)
        self.ready.pop(removed, None)

    def validate(self, objects: Iterable[Object]) -> None:
        """Raise AssertionError if one is not in the index."""
        known = set(objects)
        assert all(each in known for each in self.stamps)
        assert all(each in self.stamps for each in self.ready)
