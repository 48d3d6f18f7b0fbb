"""Which instances hold which prefixes, as far as the router knows."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

BLOCKS_MAX = 1 << 18
# An owner's blocks are in so many generations by age, and of a prefix only every so many blocks
# are looked at, where nothing has changed: a prompt has hundreds of them.
GENERATIONS = 2
STRIDE = 16

Generation = dict[int, None]


class _Held:
    """An owner's keys, in generations, the oldest first; ``where`` says in which each is."""

    __slots__ = ("generations", "where")

    def __init__(self) -> None:
        self.where: dict[int, Generation] = {}
        self.generations: deque[Generation] = deque([{}])

    def first_old(self, keys: Sequence[int]) -> int:
        """Return before which key all are of the youngest generation, as far as can be seen."""
        where, young = self.where, self.generations[-1]
        for place in range(0, len(keys), STRIDE):
            if where.get(keys[place]) is not young:
                return max(0, place - STRIDE + 1)
        return 0 if len(keys) <= STRIDE else max(0, len(keys) - STRIDE)

    def oldest(self) -> int:
        """Return the key that was used the longest time ago."""
        while not self.generations[0]:
            self.generations.popleft()
        return next(iter(self.generations[0]))


class PrefixIndex:
    """Block keys by owner. A key names a whole prefix, so that prefixes are runs of known keys.

    Every owner's keys are bounded and the least recently used go first, of one prefix the last
    first, as engines do. Keys are integers of 64 bits; owners are small numbers.
    """

    def __init__(self, blocks_max: int = BLOCKS_MAX) -> None:
        self._blocks_max = blocks_max
        self._owners: dict[int, int] = {}
        self._held: dict[int, _Held] = {}

    def __len__(self) -> int:
        return len(self._owners)

    def held(self, owner: int) -> int:
        """Return how many blocks an owner holds."""
        held = self._held.get(owner)
        return len(held.where) if held is not None else 0

    def add(self, owner: int, keys: Sequence[int], capacity: int = 0) -> None:
        """Note that an owner has, or is about to have, a prefix.

        capacity: how many blocks it can hold; 0 or more than the index's bound is that bound.
        """
        held = self._held.setdefault(owner, _Held())
        bound = min(capacity or self._blocks_max, self._blocks_max)
        if len(held.generations[-1]) >= bound // GENERATIONS:
            held.generations.append({})
        owners, where, young, bit = self._owners, held.where, held.generations[-1], 1 << owner
        for key in reversed(keys[held.first_old(keys) :]):
            found = where.get(key)
            if found is None:
                owners[key] = owners.get(key, 0) | bit
            else:
                del found[key]
            young[key] = None
            where[key] = young
        while len(where) > bound:
            self._drop(held, held.oldest(), ~bit)

    def remove(self, owner: int, keys: Iterable[int]) -> None:
        """Note that an owner has lost blocks; those it did not have are left out."""
        held = self._held.get(owner)
        if held is not None:
            for key in keys:
                if key in held.where:
                    self._drop(held, key, ~(1 << owner))

    def _drop(self, held: _Held, key: int, others: int) -> None:
        del held.where.pop(key)[key]
        left = self._owners[key] & others
        if left:
            self._owners[key] = left
        else:
            del self._owners[key]

    def clear(self, owner: int) -> None:
        """Note that an owner has lost everything."""
        held = self._held.get(owner)
        if held is not None:
            self.remove(owner, [*held.where])
            del self._held[owner]

    def match(self, keys: Sequence[int]) -> dict[int, int]:
        """Return how many leading blocks each owner has; owners without the first are left out.

        Of long prompts a gap that is shorter than STRIDE may be overlooked: engines that have a
        block have what comes before it.
        """
        get = self._owners.get
        alive = get(keys[0], 0) if keys else 0
        found: dict[int, int] = {}
        place, last = 1, len(keys)
        while alive and place < last:
            ahead = min(place + STRIDE, last) - 1
            if last > STRIDE and get(keys[ahead], 0) & alive == alive:
                place = ahead + 1
                continue
            for place in range(place, ahead + 1):  # noqa: B020
                mask = get(keys[place], 0)
                if mask & alive != alive:
                    _note(found, alive & ~mask, place)
                    alive &= mask
            place = ahead + 1
        _note(found, alive, last)
        return found

    def validate(self) -> None:
        """Raise AssertionError unless both directions agree; for tests."""
        there: dict[int, int] = {}
        for owner, held in self._held.items():
            in_generations = [key for each in held.generations for key in each]
            assert sorted(in_generations) == sorted(held.where)
            assert all(key in generation for key, generation in held.where.items())
            for key in held.where:
                there[key] = there.get(key, 0) | 1 << owner
        assert there == self._owners


def _note(found: dict[int, int], mask: int, count: int) -> None:
    while mask:
        bit = mask & -mask
        found[bit.bit_length() - 1] = count
        mask ^= bit
