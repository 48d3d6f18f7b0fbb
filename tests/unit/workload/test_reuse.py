"""Reuse distances against a cache that is played out, block by block."""

from __future__ import annotations

import random
from collections import OrderedDict

import numpy as np
import pytest

from moonpool.workload.reuse import Touches, greater_before


@pytest.mark.parametrize("count", [0, 1, 2, 3, 7, 100, 333])
def test_weights_of_greater_values_before(count: int) -> None:
    dice = random.Random(count)
    values = [dice.randrange(-1, 50) for _ in range(count)]
    weights = [dice.randrange(1, 9) for _ in range(count)]
    found = greater_before(np.array(values, dtype=np.int64), np.array(weights, dtype=np.int64))
    assert found.tolist() == [
        sum(weights[j] for j in range(i) if values[j] > values[i]) for i in range(count)
    ]


def _played(prompts: list[list[int]], size: int) -> int:
    """Count the hits of a pool of ``size`` blocks that drops the one used least recently."""
    pool: OrderedDict[int, None] = OrderedDict()
    hits = 0
    for prompt in prompts:
        wanted = list(dict.fromkeys(reversed(prompt)))
        hits += sum(block in pool for block in wanted)
        for block in wanted:
            pool[block] = None
            pool.move_to_end(block)
        while len(pool) > size:
            pool.popitem(last=False)
    return hits


def _chains(dice: random.Random, count: int) -> list[list[int]]:
    """Prompts that grow, fork and repeat; a block's id names its whole prefix."""
    known: list[tuple[int, ...]] = [()]
    ids: dict[tuple[int, ...], int] = {}
    prompts = []
    for _ in range(count):
        chain = dice.choice(known[-12:])
        chain = (*chain[: dice.randrange(len(chain) + 1)], *(dice.randrange(9) for _ in range(4)))
        known.append(chain)
        prompts.append([ids.setdefault(chain[: n + 1], len(ids)) for n in range(len(chain))])
    return prompts


@pytest.mark.parametrize("seed", range(8))
def test_hits_of_every_size_are_those_of_the_cache_played_out(seed: int) -> None:
    prompts = _chains(random.Random(seed), 120)
    touches = Touches()
    seen: set[int] = set()
    for prompt in prompts:
        head = next((n for n, block in enumerate(prompt) if block not in seen), len(prompt))
        assert touches.add("scope", prompt) == head
        seen.update(prompt)
    found = touches.distances()
    assert touches.distinct == len(seen) == found.firsts.sum()
    longest = max(map(len, prompts))
    for size in (longest, longest + 1, longest + 7, 40, 60, 100, 10_000):
        if size >= longest:
            assert found.hits(size) == _played(prompts, size)


def test_distances_by_hand() -> None:
    touches = Touches()
    # a b | c | a b d | c: b and a have one block (c) between; c has a, b and d.
    for prompt in ([1, 2], [3], [1, 2, 4], [3]):
        touches.add("scope", prompt)
    found = touches.distances()
    assert found.firsts.tolist() == [4]
    assert [found.hits(size) for size in (1, 2, 3, 4)] == [0, 1, 2, 3]
    assert (found.quantile(0.0), found.quantile(1.0)) == (0, 3)


def test_scopes_share_nothing_and_a_block_named_twice_is_one() -> None:
    touches = Touches()
    assert touches.add("a", [1, 1, 2]) == 0
    assert touches.add("b", [1, 2]) == 0
    assert touches.add("a", [1, 1, 2]) == 2
    assert touches.distinct == 4
