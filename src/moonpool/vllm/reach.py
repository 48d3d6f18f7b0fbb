"""How much of a prefix the pool can bring: as much as it has of every part and every shard."""

from __future__ import annotations

from collections.abc import Callable

from moonpool.core.keys import DIGEST_BYTES
from moonpool.vllm import objects
from moonpool.vllm.parts import Keyspace, Part

ROUNDS_MAX = 16
"""Shorter and shorter hits that are tried before the prefix counts as missing."""

Match = Callable[[bytes, bytes], int]
"""Asks the master how many leading blocks of (a namespace, packed digests) are in the pool."""


def reach(match: Match, keys: Keyspace, namespace: bytes, digests: bytes, stride: int) -> int:
    """Return how many leading blocks can be loaded: full attention's from the start of the prefix,
    a window's before its end. ``stride``: blocks in an object."""
    first, *others = keys.parts
    count = len(digests) // DIGEST_BYTES
    for at in keys.of(namespace, first.number):
        count = match(at, digests[: count * DIGEST_BYTES]) if count else 0
    if keys.single:
        return count
    return _agreed(match, keys, namespace, digests, stride, others, count)


def _agreed(
    match: Match,
    keys: Keyspace,
    namespace: bytes,
    digests: bytes,
    stride: int,
    others: list[Part],
    count: int,
) -> int:
    """Return the longest hit of at most ``count`` blocks that ends where every part has an end."""
    spaces = {part.number: keys.of(namespace, part.number) for part in keys.parts}
    for _ in range(ROUNDS_MAX):
        longest = count
        for part in (*others, keys.parts[0]):
            # Of the first part everything up to the last boundary is known to be there.
            start = objects.floor(count, stride) if part is keys.parts[0] else None
            begin = objects.floor(part.first_needed(count), stride) if start is None else start
            for at in spaces[part.number]:
                if count > begin:
                    asked = digests[begin * DIGEST_BYTES : count * DIGEST_BYTES]
                    count = begin + match(at, asked)
        if count == longest:
            return count
    return 0
