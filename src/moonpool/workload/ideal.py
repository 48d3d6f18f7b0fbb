"""What a cache that forgets nothing and is shared by all could have hit."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xxhash


class IdealCache:
    """Counts the prompt tokens that were seen before, in full blocks, whoever sent them.

    As in an engine, the last token of a prompt is always computed, so a prompt that was seen in
    full hits one block less when its length is a multiple of the block.
    """

    def __init__(self, block_tokens: int) -> None:
        self._block_tokens = block_tokens
        self._seen: set[int] = set()

    def could_hit(self, prompt: Sequence[int]) -> int:
        """Return how many leading tokens of the prompt are in blocks that were seen before."""
        hits = 0
        for digest in self._digests(prompt[:-1]):
            if digest not in self._seen:
                break
            hits += self._block_tokens
        return hits

    def add(self, tokens: Sequence[int]) -> None:
        """Remember the full blocks of a prompt, or of a prompt with its answer."""
        self._seen.update(self._digests(tokens))

    def _digests(self, tokens: Sequence[int]) -> list[int]:
        """Return one chained 64-bit digest for each full block."""
        size = self._block_tokens
        data = np.asarray(tokens, dtype=np.int64)
        digest, digests = 0, []
        for start in range(0, len(data) - size + 1, size):
            digest = xxhash.xxh3_64_intdigest(data[start : start + size].tobytes(), digest)
            digests.append(digest)
        return digests
