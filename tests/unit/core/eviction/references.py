"""The policies once more, as plainly as can be: lists that are searched from end to end.

Each holds ``capacity`` objects of the same size, by key. ``access`` is one use of an object in
order of a request's prefix: it is read if it is there, else put behind ``parent``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


class Reference:
    """Base: what is there, in order of insertion, with its parent."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.parents: dict[Any, Any] = {}

    @property
    def resident(self) -> set[Any]:
        return set(self.parents)

    def leaves(self) -> list[Any]:
        held = set(self.parents.values())
        return [key for key in self.parents if key not in held]

    def access(self, key: Any, parent: Any = None) -> bool:
        if key in self.parents:
            self.hit(key)
            return True
        self.touch(parent)
        self.miss(key, parent)
        self.parents[key] = parent
        return False

    def hit(self, key: Any) -> None:
        raise NotImplementedError

    def miss(self, key: Any, parent: Any) -> None:
        """Make room for a key and queue it."""
        raise NotImplementedError

    def touch(self, parent: Any) -> None:
        """A child of this one is put."""


class LruReference(Reference):
    """What was used least recently."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self.order: list[Any] = []

    def touch(self, parent: Any) -> None:
        if parent in self.order:
            self.hit(parent)

    def hit(self, key: Any) -> None:
        self.order.remove(key)
        self.order.append(key)

    def miss(self, key: Any, parent: Any) -> None:
        if len(self.order) == self.capacity:
            victim = self.victim()
            self.order.remove(victim)
            del self.parents[victim]
        self.order.append(key)

    def victim(self) -> Any:
        return self.order[0]


class LeafLruReference(LruReference):
    """Of the leaves, what was used least recently."""

    def victim(self) -> Any:
        leaves = set(self.leaves())
        return next(key for key in self.order if key in leaves)


class S3FifoReference(Reference):
    """Algorithm 1 of the paper; what it removes beyond the one that is needed, it does not."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self.small: list[Any] = []
        self.main: list[Any] = []
        self.ghost: list[Any] = []
        self.freq: dict[Any, int] = {}

    def hit(self, key: Any) -> None:
        self.freq[key] = min(self.freq[key] + 1, 3)

    def miss(self, key: Any, parent: Any) -> None:
        if len(self.parents) == self.capacity:
            victim = self.evict()
            del self.parents[victim], self.freq[victim]
        if key in self.ghost:
            self.ghost.remove(key)
            self.main.append(key)
        else:
            self.small.append(key)
        self.freq[key] = 0

    def evict(self) -> Any:
        while True:
            if self.small and (10 * len(self.small) >= self.capacity or not self.main):
                tail = self.small.pop(0)
                if self.freq[tail] > 1:
                    self.main.append(tail)
                    continue
                self.ghost.append(tail)
                while 10 * len(self.ghost) > 9 * self.capacity:
                    self.ghost.pop(0)
                return tail
            tail = self.main.pop(0)
            if self.freq[tail] == 0:
                return tail
            self.freq[tail] -= 1
            self.main.append(tail)


class ArcReference(Reference):
    """Figure 4 of the paper, case by case; the last of a list is the one used most recently."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self.p = 0.0
        self.t1: list[Any] = []
        self.t2: list[Any] = []
        self.b1: list[Any] = []
        self.b2: list[Any] = []

    def hit(self, key: Any) -> None:
        (self.t1 if key in self.t1 else self.t2).remove(key)
        self.t2.append(key)

    def touch(self, parent: Any) -> None:
        if parent in self.t2:
            self.hit(parent)

    def miss(self, key: Any, parent: Any) -> None:
        c = self.capacity
        if key in self.b1:
            self.p = min(c, self.p + max(len(self.b2) / len(self.b1), 1))
            self.b1.remove(key)
            self.replace(from_b2=False)
            self.t2.append(key)
        elif key in self.b2:
            self.p = max(0, self.p - max(len(self.b1) / len(self.b2), 1))
            self.b2.remove(key)
            self.replace(from_b2=True)
            self.t2.append(key)
        else:
            self.new(c)
            self.t1.append(key)

    def new(self, c: int) -> None:
        if len(self.t1) + len(self.b1) == c:
            if len(self.t1) < c:
                self.b1.pop(0)
                self.replace(from_b2=False)
            else:
                del self.parents[self.t1.pop(0)]
        else:
            total = len(self.t1) + len(self.t2) + len(self.b1) + len(self.b2)
            if total >= c:
                if total == 2 * c:
                    self.b2.pop(0)
                self.replace(from_b2=False)

    def replace(self, *, from_b2: bool) -> None:
        if len(self.t1) + len(self.t2) < self.capacity:
            return
        enough = len(self.t1) > self.p or (from_b2 and len(self.t1) == self.p)
        out, ghosts = (self.t1, self.b1) if self.t1 and enough else (self.t2, self.b2)
        if not out:
            out, ghosts = self.t1, self.b1
        victim = out.pop(0)
        ghosts.append(victim)
        del self.parents[victim]


@dataclass
class Worth:
    value: float
    depth: int
    uses: int = field(default=1)


class CostReference(Reference):
    """Of the leaves but the one that is continued, that of least worth, the oldest of several. One
    use of an object of the pool's only size at the head of a chain is worth 1."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self.clock = 0.0
        self.worth: dict[Any, Worth] = {}

    def value(self, worth: Worth) -> float:
        return self.clock + worth.uses * (1 + worth.depth / 128)

    def hit(self, key: Any) -> None:
        worth = self.worth[key]
        worth.uses = min(worth.uses + 1, 2)
        worth.value = self.value(worth)

    def access(self, key: Any, parent: Any = None) -> bool:
        hit = super().access(key, parent)
        if not hit:
            above = self.worth.get(parent)
            worth = self.worth[key] = Worth(0.0, above.depth + 1 if above else 0)
            worth.value = self.value(worth)
        return hit

    def touch(self, parent: Any) -> None:
        if parent in self.worth:
            self.worth[parent].value = self.value(self.worth[parent])

    def miss(self, key: Any, parent: Any) -> None:
        if len(self.parents) == self.capacity:
            leaves = [each for each in self.leaves() if each != parent] or [parent]
            victim = min(leaves, key=lambda each: self.worth[each].value)
            self.clock = max(self.clock, self.worth.pop(victim).value)
            del self.parents[victim]


REFERENCES: dict[str, type[Reference]] = {
    "lru": LruReference,
    "leaf-lru": LeafLruReference,
    "s3fifo": S3FifoReference,
    "arc": ArcReference,
    "cost": CostReference,
}
