"""Which instances hold which prefixes, as far as the router knows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

BLOCKS_MAX = 1 << 18


class PrefixIndex:
    """Block keys by owner. A key names a whole prefix, so that prefixes are runs of known keys.

    Every owner's keys are bounded and the least recently used go first, of one prefix the last
    first, as engines do. Keys are integers of 64 bits; owners are small numbers.
    """

    def __init__(self, blocks_max: int = BLOCKS_MAX) -> None:
        self._blocks_max = blocks_max
        self._owners: dict[int, int] = {}
        self._held: dict[int, dict[int, None]] = {}

    def __len__(self) -> int:
        return len(self._owners)

    def held(self, owner: int) -> int:
        """Return how many blocks an owner holds."""
        return len(self._held.get(owner, ()))

    def add(self, owner: int, keys: Sequence[int], capacity: int = 0) -> None:
        """Note that an owner has, or is about to have, a prefix.

        capacity: how many blocks it can hold; 0 or more than the index's bound is that bound.
        """
        held = self._held.setdefault(owner, {})
        owners, bit = self._owners, 1 << owner
        for key in reversed(keys):
            if key in held:
                del held[key]
            else:
                owners[key] = owners.get(key, 0) | bit
            held[key] = None
        bound = min(capacity or self._blocks_max, self._blocks_max)
        if len(held) > bound:
            oldest = iter(held)
            self.remove(owner, [next(oldest) for _ in range(len(held) - bound)])

    def remove(self, owner: int, keys: Iterable[int]) -> None:
        """Note that an owner has lost blocks; those it did not have are left out."""
        held = self._held.get(owner, {})
        owners, others = self._owners, ~(1 << owner)
        for key in keys:
            if key in held:
                del held[key]
                left = owners[key] & others
                if left:
                    owners[key] = left
                else:
                    del owners[key]

    def clear(self, owner: int) -> None:
        """Note that an owner has lost everything."""
        self.remove(owner, list(self._held.get(owner, ())))
        self._held.pop(owner, None)

    def match(self, keys: Sequence[int]) -> dict[int, int]:
        """Return how many leading blocks each owner has; owners without the first are left out."""
        owners = self._owners
        alive = owners.get(keys[0], 0) if keys else 0
        found: dict[int, int] = {}
        for place, key in enumerate(keys):
            both = alive & owners.get(key, 0)
            if both != alive:
                _note(found, alive & ~both, place)
                alive = both
                if not alive:
                    break
        _note(found, alive, len(keys))
        return found

    def validate(self) -> None:
        """Raise AssertionError unless both directions agree; for tests."""
        there = {key: 0 for held in self._held.values() for key in held}
        for owner, held in self._held.items():
            for key in held:
                there[key] |= 1 << owner
        assert there == self._owners


def _note(found: dict[int, int], mask: int, count: int) -> None:
    while mask:
        bit = mask & -mask
        found[bit.bit_length() - 1] = count
        mask ^= bit
