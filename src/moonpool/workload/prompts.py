"""Prompts of token ids made from nothing but the names of a trace's blocks."""

from __future__ import annotations

import hashlib
from collections import OrderedDict

import numpy as np
from numpy.typing import NDArray

from moonpool.workload.selection import Item

Tokens = NDArray[np.uint32]
VOCABULARY_MIN, VOCABULARY_MAX = 2, 1 << 31
KEPT_TOKENS = 16 << 20


class Prompts:
    """Equal block ids of one scope give equal tokens, in any process and on any machine.

    vocabulary: tokens are drawn from [0, vocabulary). seed: another one gives other tokens
    everywhere, so that a cache that has seen one run holds nothing of the next.
    """

    def __init__(self, vocabulary: int, seed: int = 0, kept_tokens: int = KEPT_TOKENS) -> None:
        if not VOCABULARY_MIN <= vocabulary <= VOCABULARY_MAX:
            raise ValueError(f"a vocabulary of {vocabulary}")
        self._vocabulary, self._seed = np.uint32(vocabulary), seed
        self._kept: OrderedDict[tuple[str, int, int], Tokens] = OrderedDict()
        self._room = kept_tokens

    def prompt(self, item: Item) -> list[int]:
        """Return the tokens of a request's prompt."""
        size = item.block_tokens
        parts = [self.block(item.scope, each, size) for each in item.blocks.tolist()]
        found: list[int] = np.concatenate(parts)[: item.input_tokens].tolist()
        return found

    def block(self, scope: str, block: int, count: int) -> Tokens:
        """Return the tokens of a block; a shorter one is the beginning of a longer one."""
        key = scope, block, count
        found = self._kept.get(key)
        if found is not None:
            self._kept.move_to_end(key)
            return found
        name = f"{self._seed}\0{scope}\0{block}".encode()
        words = np.frombuffer(hashlib.shake_128(name).digest(4 * count), dtype="<u4")
        found = self._kept[key] = (words % self._vocabulary).astype(np.uint32)
        self._room -= count
        while self._room < 0 and len(self._kept) > 1:
            self._room += self._kept.popitem(last=False)[0][2]
        return found

    def fresh(self, name: str, count: int) -> list[int]:
        """Return tokens that no block has."""
        found: list[int] = self.block(f"\0{name}", 0, count).tolist()
        return found
