"""What a policy is: it is offered what may be evicted and says what goes next."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import ClassVar, Final

from moonpool.core.eviction.chains import is_evictable, is_evictable_leaf
from moonpool.core.eviction.released import Released
from moonpool.core.index import Object

_MANY: Final = 1 << 62


class Policy:
    """Which object goes next.

    Whoever makes an object evictable (it is new, its last child is gone, nobody leases or pins it
    any more) offers it; one that stopped to be evictable meanwhile is passed over when it comes
    up. What was popped is evicted or offered again. A policy's own note of an object is the
    object's ``rank``: 0 and above while it is queued, below while it is not, -1 if never.
    """

    name: ClassVar[str]
    counts: ClassVar[bool] = True
    """Whether it wants to know of uses, evictions and removals: only then is it told."""
    inner: ClassVar[bool] = True
    """Whether it may evict objects that others hang on."""

    def __init__(self) -> None:
        self.released = Released()

    def offer(self, offered: Object, objects: int) -> None:
        """Consider an object (of ``objects`` in the pool) that may now be evictable."""
        released = self.released
        if released.stamps and released.takes(offered):
            return
        if offered.rank < 0 and self.may_go(offered):
            self.enter(offered, objects)

    def offer_newest(self, added: list[Object], objects: int) -> None:
        """Consider new objects in order of their serials, the latest of all."""
        for each in added:
            self.offer(each, objects)

    def pop(self) -> Object | None:
        """Take out the object to be evicted next; offer it again or remove it."""
        if self.released.ready:
            found = self.released.pop(lambda each: self.offer(each, _MANY))
            if found is not None:
                return found
        return self.next()

    def may_go(self, candidate: Object) -> bool:
        """Tell whether this policy may evict an object now."""
        return is_evictable(candidate) if self.inner else is_evictable_leaf(candidate)

    def enter(self, entering: Object, objects: int) -> None:
        """Queue an object that may go."""
        raise NotImplementedError

    def next(self) -> Object | None:
        """Take out the object that goes next, of those that are not released."""
        raise NotImplementedError

    def used(self, used: Iterable[Object]) -> None:
        """Objects were read or put again, in this order; their ``used`` says so."""

    def continued(self, parent: Object) -> None:
        """A child of this object is about to be put; its ``used`` says so."""

    def coming(self, key: bytes, parent: Object | None = None) -> None:
        """Room is about to be made for this key, which continues ``parent``; for none in
        particular if it is empty."""

    def evicted(self, evicted: Object) -> None:
        """An object is about to be removed to make room."""

    def removed(self, removed: Object) -> None:
        """An object is about to leave the index, for whatever reason."""

    def queued(self) -> Iterable[Object]:
        """Return what is queued, each once."""
        raise NotImplementedError

    def validate(self, objects: Iterable[Object], leaving: Collection[int] = ()) -> None:
        """Raise AssertionError if an evictable object is not queued, or queued twice. ``leaving``:
        generations of those that need not be."""
        known = list(objects)
        queued = list(self.queued())
        found = set(queued)
        assert len(queued) == len(found)
        self.released.validate(known)
        for each in known:
            assert each.queued == (each in found)
            assert (
                each.queued
                or each in self.released.ready
                or not self.may_go(each)
                or each.generation in leaving
            )
