"""Requests over a random tree of prefixes, served by a master as engines have it served."""

from __future__ import annotations

import random
from collections.abc import Iterator

from moonpool.core import messages as m
from tests.unit.core.driver import PAGE, Driver, block

Path = list[int]


def paths(seed: int, blocks: int, requests: int) -> Iterator[Path]:
    """Yield paths from a root to any block of a tree; some blocks are popular, some recent."""
    rng = random.Random(seed)
    parents = [-1] + [
        rng.choice((-1, number - 1, number - 1, rng.randrange(number)))
        for number in range(1, blocks)
    ]
    recent: list[int] = []
    for _ in range(requests):
        pick = rng.random()
        if recent and pick < 0.4:
            at = rng.choice(recent[-5:])
        elif pick < 0.7:
            at = int(rng.paretovariate(0.7)) % blocks
        else:
            at = rng.randrange(blocks)
        recent.append(at)
        path = [at]
        while parents[path[-1]] >= 0:
            path.append(parents[path[-1]])
        yield path[::-1]


class Traffic:
    """A pool of ``capacity`` objects of one page each."""

    def __init__(self, policy: str, capacity: int) -> None:
        self.pool = Driver(eviction=policy)
        self.pool.mount(pages=capacity, slots=capacity + 1)
        self._lease = 0

    @property
    def resident(self) -> set[int]:
        return {int.from_bytes(each.key[-16:], "big") for each in self.pool.state.index}

    def request(self, path: Path) -> int:
        """Serve a request; return how many leading objects were there."""
        keys = [block(number) for number in path]
        held = self.hold(path)
        for i in range(held, len(path)):
            self.put(keys[i], keys[i - 1] if i else b"")
        return held

    def hold(self, path: Path) -> int:
        self._lease += 1
        keys: list[bytes] = [block(number) for number in path]
        held = self.pool.expect(m.Matched, m.Hold(keys, self._lease, 10.0)).count
        self.pool.ask(m.Release([self._lease]))
        return held

    def put(self, key: bytes, parent: bytes) -> int:
        item = m.PutItem(key, PAGE, parent)
        (grant,) = self.pool.expect(m.PutStarted, m.PutStart([item])).grants
        if grant.code == 0:
            assert self.pool.end(grant) == [0]
        return grant.code
