"""An engine's cache by runs is its cache by blocks."""

from __future__ import annotations

import random

from moonpool.sim.fleet.caches import BlockCache, Cache, RunCache
from moonpool.sim.fleet.request import Request


def request(common: int, number: int, own: int) -> Request:
    keys = [*range(common), *range(number * 1000, number * 1000 + own)]
    return Request("s", 0, keys, len(keys), 1, runs=((-1, common), (number, own)))


def serve(cache: Cache, asked: Request) -> int:
    """Serve a request by itself; return its hits, -1 if it did not fit."""
    hits = cache.match(asked)
    missing = len(asked.keys) - hits
    if not cache.take(asked, hits, missing):
        return -1
    new = cache.name(asked, hits, len(asked.keys))
    cache.give(asked, missing - new)
    return hits


def both(blocks: int) -> tuple[BlockCache, RunCache]:
    return BlockCache(blocks, lambda came, keys: None), RunCache(blocks)


def test_by_hand() -> None:
    for cache in both(10):
        assert serve(cache, request(2, 1, 3)) == 0  # there: C C 1 1 1
        assert serve(cache, request(2, 1, 4)) == 5  # C C 1 1 1 1
        assert serve(cache, request(2, 2, 4)) == 2  # 10 of 10
        assert serve(cache, request(2, 3, 1)) == 2  # the last of conversation 1 goes
        assert serve(cache, request(2, 1, 4)) == 5  # and is computed again; 2 loses one
        assert serve(cache, request(2, 2, 4)) == 5
        assert cache.stored - cache.removed == 10


def test_what_does_not_fit_is_not_taken() -> None:
    for cache in both(4):
        first, second = request(0, 1, 3), request(0, 2, 2)
        assert cache.take(first, 0, 3)
        assert not cache.take(second, 0, 2)
        cache.give(first, 3 - cache.name(first, 0, 3))
        assert cache.take(second, 0, 2)
        # Two of the three of the first are left.
        assert cache.match(first) == 2


def test_runs_behave_as_blocks_do_for_conversations_that_grow() -> None:
    chance = random.Random(7)
    for seed in range(20):
        by_blocks, by_runs = both(60)
        length = dict.fromkeys(range(1, 9), 0)
        running: list[tuple[Request, int, int]] = []
        for _ in range(400):
            number = chance.randint(1, 8)
            if any(each.runs[1][0] == number for each, _, _ in running):
                continue  # a conversation has one request at a time
            length[number] = min(20, length[number] + chance.randint(0, 3))
            asked = request(5, number, length[number])
            hits = by_blocks.match(asked)
            assert by_runs.match(asked) == hits, seed
            missing = len(asked.keys) - hits
            taken = by_blocks.take(asked, hits, missing)
            assert by_runs.take(asked, hits, missing) == taken
            if taken:
                running.append((asked, hits, missing))
            while len(running) > chance.randint(0, 3):
                ended, hits, missing = running.pop(chance.randrange(len(running)))
                new = by_blocks.name(ended, hits, len(ended.keys))
                assert by_runs.name(ended, hits, len(ended.keys)) == new
                by_blocks.give(ended, missing - new)
                by_runs.give(ended, missing - new)
                assert (by_runs.stored, by_runs.removed) == (by_blocks.stored, by_blocks.removed)
