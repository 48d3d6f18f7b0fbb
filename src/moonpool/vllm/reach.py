"""How much of a prefix the pool can bring: as much as it has of every part and every shard."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from moonpool.core.keys import DIGEST_BYTES
from moonpool.vllm import objects
from moonpool.vllm.parts import Keyspace

ROUNDS_MAX = 16
"""Shorter and shorter hits that are tried before the prefix counts as missing."""
STATES_MAX = 1024
"""Ends of a prefix, the last ones, at which states are looked for."""


@dataclass(frozen=True, slots=True)
class Asker:
    """Asks the master. match: how many leading blocks of (a namespace, packed digests) are in the
    pool; exist: which of those digests are."""

    match: Callable[[bytes, bytes], int]
    exist: Callable[[bytes, bytes], Sequence[bool]]


def reach(ask: Asker, keys: Keyspace, namespace: bytes, digests: bytes, stride: int) -> int:
    """Return how many leading blocks can be loaded: full attention's from the start of the prefix,
    a window's before its end, a state at its end. ``stride``: blocks in an object."""
    count = len(digests) // DIGEST_BYTES
    for at in keys.of(namespace, keys.parts[0].number):
        count = ask.match(at, digests[: count * DIGEST_BYTES]) if count else 0
    if keys.single or not count:
        return count
    if keys.states:
        return _at_a_state(ask, keys, namespace, digests, stride, count)
    return _agreed(ask, keys, namespace, digests, stride, count)


def _at_a_state(
    ask: Asker, keys: Keyspace, namespace: bytes, digests: bytes, stride: int, count: int
) -> int:
    """Return the longest hit that ends where there is a state, and of the other parts an end."""
    last = min(objects.floor(count, stride) + stride - 1, len(digests) // DIGEST_BYTES)
    first = max(0, last - STATES_MAX)
    asked = digests[first * DIGEST_BYTES : last * DIGEST_BYTES]
    spaces = [at for part in keys.states for at in keys.of(namespace, part.number)]
    there = zip(*(ask.exist(at, asked) for at in spaces), strict=True)
    ends = [end for end, flags in enumerate(there, first + 1) if all(flags)]
    for end in ends[: -ROUNDS_MAX - 1 : -1]:
        if _agreed(ask, keys, namespace, digests, stride, end) == end:
            return end
    return 0


def _agreed(
    ask: Asker, keys: Keyspace, namespace: bytes, digests: bytes, stride: int, count: int
) -> int:
    """Return the longest hit of at most ``count`` blocks that ends where every part that is there
    at all ends has one. Of the first part everything up to the last boundary is there."""
    asked = [part for part in (*keys.parts[1:], keys.parts[0]) if not part.state]
    for _ in range(ROUNDS_MAX):
        longest = count
        for part in asked:
            needed = count if part is keys.parts[0] else part.first_needed(count)
            begin = objects.floor(needed, stride)
            for at in keys.of(namespace, part.number):
                if count > begin:
                    some = digests[begin * DIGEST_BYTES : count * DIGEST_BYTES]
                    count = begin + ask.match(at, some)
        if count == longest:
            return count
    return 0
