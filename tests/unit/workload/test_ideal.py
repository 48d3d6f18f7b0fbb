"""What could be hit, counted by hand."""

from __future__ import annotations

from moonpool.workload.ideal import IdealCache


def test_hits_are_leading_full_blocks_seen_before() -> None:
    cache = IdealCache(4)
    prompt = list(range(10))
    assert cache.could_hit(prompt) == 0
    cache.add(prompt)
    assert cache.could_hit(prompt) == 8
    assert cache.could_hit([*range(6), 99, 99, 99, 99]) == 4
    assert cache.could_hit([99, *range(1, 10)]) == 0


def test_the_last_token_is_always_computed() -> None:
    cache = IdealCache(4)
    cache.add(list(range(8)))
    assert cache.could_hit(list(range(8))) == 4
    assert cache.could_hit(list(range(9))) == 8
    assert cache.could_hit([]) == 0


def test_a_block_counts_only_after_the_same_prefix() -> None:
    cache = IdealCache(2)
    cache.add([1, 2, 3, 4])
    assert cache.could_hit([3, 4, 5]) == 0
    assert cache.could_hit([9, 9, 3, 4, 5]) == 0
