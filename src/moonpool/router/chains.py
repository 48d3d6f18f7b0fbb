"""Block hashes of growing texts: only what is new is encoded and hashed.

A text is cut before special tokens, where tokenizers begin anew: the ids of the part before such a
cut do not depend on what follows, and the part from it on has the same ids alone.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import msgspec
import xxhash

BYTES_MAX = 256 << 20
# What a block (its hash, its key, two pointers) and a cut occupy, about.
BLOCK_BYTES, CUT_BYTES = 130, 400
# Of a text with more, those at its end.
CUTS_MAX = 1024


@dataclass(slots=True, eq=False)
class Chain:
    """A prompt of ``length`` tokens: hashes and keys of its full blocks, and its cuts in order.

    fresh: the ids of all that comes after the blocks whose hashes are known.
    """

    length: int
    fresh: list[int]
    hashes: list[bytes] = field(default_factory=list)
    keys: list[int] = field(default_factory=list)
    cuts: list[int] = field(default_factory=list)


class Cut(msgspec.Struct, frozen=True, eq=False, gc=False):
    """A place where a known text may be cut: the number of tokens before it, and those of them
    that fill no block. There are many: the garbage collector need not look at them."""

    chain: Chain
    place: int
    tail: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Search:
    """What is known of a text: ``rest`` is what must be encoded."""

    rest: str
    cuts: list[tuple[int, int]]
    known: int
    base: Cut | None


class Chains:
    """The chains of recent texts, found by their longest common cut; the oldest go first.

    marks: the special tokens that begin cuts. bytes_max: memory for them, about. secret: makes
    digests that nobody outside can foresee.
    """

    def __init__(
        self, marks: Sequence[str], bytes_max: int = BYTES_MAX, *, secret: int = 0
    ) -> None:
        longest = sorted((mark.encode() for mark in marks), key=len, reverse=True)
        self._marks = re.compile(b"|".join(map(re.escape, longest))) if marks else None
        self._kinds = {mark: xxhash.xxh3_128_intdigest(mark, secret) for mark in longest}
        self._secret = secret
        self._bytes_max = bytes_max
        self._chains: OrderedDict[Chain, int] = OrderedDict()
        self._cuts: dict[int, Cut] = {}
        self.held_bytes = 0

    def search(self, seed: bytes, text: str) -> Search:
        """Return what is known of a text. Texts with different seeds share nothing."""
        data = text.encode("utf-8", "surrogatepass")
        cuts = [*self._digests(seed, data)]
        for known in range(len(cuts), 0, -1):
            digest, begin = cuts[known - 1]
            found = self._cuts.get(digest)
            if found is not None:
                return Search(data[begin:].decode("utf-8", "surrogatepass"), cuts, known, found)
        return Search(text, cuts, 0, None)

    def keep(self, search: Search, chain: Chain, places: list[int], block_tokens: int) -> None:
        """Remember a chain that ``grown`` has made and whose blocks are hashed; its ids go.

        places: where the marks are among the ids of ``search.rest``.
        """
        fresh, chain.fresh = chain.fresh, []
        base = search.base
        kept, tail = (base.place, len(base.tail)) if base is not None else (0, 0)
        # The encoded part begins with the mark of its own cut, which was known before.
        new = search.cuts[max(0, search.known - 1) :]
        if search.known == 0 and len(places) == len(new) + 1:
            places = places[1:]
        if len(places) != len(new):
            # What looks like a mark in the text is none for the tokenizer: trust no cut of it.
            return
        if base is not None and base.chain.cuts and self._ends(base):
            # The shorter one is part of this: its cuts are cuts of this as well.
            held = base.chain
            held.hashes, held.keys, held.length = chain.hashes, chain.keys, chain.length
            chain = held
        first = kept - tail
        for (digest, _), found in zip(new, places, strict=True):
            place = kept + found
            begin = place // block_tokens * block_tokens
            if digest not in self._cuts:
                chain.cuts.append(digest)
                self._cuts[digest] = Cut(chain, place, tuple(fresh[begin - first : place - first]))
        self._add(chain)
        if search.cuts and (head := self._cuts.get(search.cuts[0][0])) is not None:
            self._chains.move_to_end(head.chain)

    def _ends(self, cut: Cut) -> bool:
        """Return whether a cut is its chain's last."""
        return self._cuts.get(cut.chain.cuts[-1]) is cut

    def _digests(self, seed: bytes, data: bytes) -> Iterator[tuple[int, int]]:
        """Yield (digest of what is before it and of the mark itself, position) of each cut."""
        if self._marks is None:
            return
        digest, done, kinds = xxhash.xxh3_128(seed, self._secret), 0, self._kinds
        view = memoryview(data)
        for mark in self._marks.finditer(data):
            begin = mark.start()
            if begin == 0:
                continue
            digest.update(view[done:begin])
            done = begin
            yield digest.intdigest() ^ kinds[mark[0]], begin

    def _add(self, chain: Chain) -> None:
        """Count a chain as the newest; drop the oldest ones that are too many."""
        for digest in chain.cuts[:-CUTS_MAX]:
            del self._cuts[digest]
        del chain.cuts[:-CUTS_MAX]
        if not chain.cuts:
            return
        size = len(chain.hashes) * BLOCK_BYTES + len(chain.cuts) * CUT_BYTES
        self.held_bytes += size - self._chains.pop(chain, 0)
        self._chains[chain] = size
        while self.held_bytes > self._bytes_max:
            oldest, size = self._chains.popitem(last=False)
            self.held_bytes -= size
            for digest in oldest.cuts:
                del self._cuts[digest]
            oldest.cuts.clear()


def grown(search: Search, ids: list[int], block_tokens: int) -> Chain:
    """Return the text's chain, made of what was known and the ids of ``search.rest``."""
    base = search.base
    if base is None:
        return Chain(len(ids), ids)
    blocks = base.place // block_tokens
    known = base.chain
    return Chain(
        base.place + len(ids), [*base.tail, *ids], known.hashes[:blocks], known.keys[:blocks]
    )
