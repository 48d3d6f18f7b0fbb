"""Hard pins: the objects that eviction never takes, and their bytes."""

from __future__ import annotations

from collections.abc import Container, Iterable

from moonpool.core.index import Object


class HardPins:
    """What is pinned for good. ``nbytes`` also counts the puts in progress that will be."""

    def __init__(self) -> None:
        self.nbytes = 0
        self._objects: dict[Object, int] = {}
        self._puts: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._objects)

    def __contains__(self, candidate: Object) -> bool:
        return candidate in self._objects

    def begin(self, generation: int, nbytes: int) -> None:
        """A put begins whose object is to be pinned."""
        self._puts[generation] = nbytes
        self.nbytes += nbytes

    def resolve(self, generation: int) -> None:
        """A put is over."""
        self.nbytes -= self._puts.pop(generation, 0)

    def add(self, pinned: Object) -> None:
        """Pin an object of the index."""
        pinned.pinned = True
        self.forget(pinned)
        self._objects[pinned] = pinned.size
        self.nbytes += pinned.size

    def forget(self, removed: Object) -> None:
        """Forget an object, which need not be pinned."""
        self.nbytes -= self._objects.pop(removed, 0)

    def validate(self, objects: Iterable[Object], puts: Container[int]) -> None:
        """Raise AssertionError if one is not in the index or not pinned, or the bytes are wrong."""
        known = set(objects)
        assert all(each in known and each.pinned for each in self._objects)
        assert all(generation in puts for generation in self._puts)
        assert self.nbytes == sum(self._objects.values()) + sum(self._puts.values())
