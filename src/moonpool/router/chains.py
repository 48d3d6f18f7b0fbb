"""Token ids and block hashes of growing texts: only what is new is worked on.

A text is cut before special tokens, where tokenizers begin anew: the ids of the part before such a
cut do not depend on what follows, and the part from it on has the same ids alone.
"""

from __future__ import annotations

import hashlib
import re
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

TOKENS_MAX = 8 << 20
CUTS_MAX = 64


@dataclass(slots=True)
class Chain:
    """A prompt's ids, and the hashes and keys of its full blocks as far as they were asked for."""

    tokens: list[int]
    hashes: list[bytes] = field(default_factory=list)
    keys: list[int] = field(default_factory=list)
    cuts: list[bytes] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Search:
    """What is known of a text: ``rest`` is what must be encoded."""

    rest: str
    cuts: list[tuple[bytes, int]]
    known: int
    base: Chain | None
    kept: int


class Chains:
    """The chains of recent texts, found by their longest common cut; the oldest go first.

    marks: the special tokens that begin cuts. tokens_max: how many ids are kept in all.
    """

    def __init__(self, marks: Sequence[str], tokens_max: int = TOKENS_MAX) -> None:
        longest_first = sorted(marks, key=len, reverse=True)
        self._marks = re.compile("|".join(map(re.escape, longest_first))) if marks else None
        self._tokens_max = tokens_max
        self._chains: OrderedDict[int, Chain] = OrderedDict()
        self._cuts: dict[bytes, tuple[Chain, int]] = {}
        self.held = 0

    def search(self, seed: bytes, text: str) -> Search:
        """Return what is known of a text. Texts with different seeds share nothing."""
        cuts = [*self._digests(seed, text)]
        for known in range(len(cuts), 0, -1):
            digest, begin = cuts[known - 1]
            found = self._cuts.get(digest)
            if found is not None:
                return Search(text[begin:], cuts, known, *found)
        return Search(text, cuts, 0, None, 0)

    def add(self, search: Search, ids: list[int], places: list[int], block_tokens: int) -> Chain:
        """Return the text's chain, made of what was known and the ids of ``search.rest``.

        places: where among the ids the marks are.
        """
        chain = _grown(search.base, search.kept, ids, block_tokens)
        self._keep(chain, search, [search.kept + place for place in places])
        return chain

    def _digests(self, seed: bytes, text: str) -> Iterator[tuple[bytes, int]]:
        """Yield (digest of what is before it and of the mark itself, position) of each cut."""
        if self._marks is None:
            return
        digest, done = hashlib.sha256(seed), 0
        for mark in self._marks.finditer(text):
            if mark.start() == 0:
                continue
            digest.update(text[done : mark.start()].encode("utf-8", "surrogatepass"))
            done = mark.start()
            here = digest.copy()
            here.update(b"\0" + mark[0].encode())
            yield here.digest(), done

    def _keep(self, chain: Chain, search: Search, places: list[int]) -> None:
        # The encoded part begins with the mark of its own cut, which was known before.
        new = search.cuts[max(0, search.known - 1) :]
        if search.known == 0 and len(places) == len(new) + 1:
            places = places[1:]
        if len(places) != len(new):
            # What looks like a mark in the text is none for the tokenizer: trust no cut of it.
            return
        for (digest, _), place in [*zip(new, places, strict=True)][-CUTS_MAX:]:
            self._cuts[digest] = (chain, place)
            chain.cuts.append(digest)
        self._chains[id(chain)] = chain
        self.held += len(chain.tokens)
        while self.held > self._tokens_max and self._chains:
            self._drop(self._chains.popitem(last=False)[1])

    def _drop(self, chain: Chain) -> None:
        self.held -= len(chain.tokens)
        for digest in chain.cuts:
            found = self._cuts.get(digest)
            if found is not None and found[0] is chain:
                del self._cuts[digest]


def _grown(base: Chain | None, kept: int, ids: list[int], block_tokens: int) -> Chain:
    if base is None:
        return Chain(ids)
    blocks = kept // block_tokens
    return Chain(base.tokens[:kept] + ids, base.hashes[:blocks], base.keys[:blocks])
