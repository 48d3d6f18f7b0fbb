"""Which blocks of a prefix a layer needs, and which of them an object of the pool holds.

vLLM puts a model's layers into groups and gives a request one table of blocks for each group. A
*part* is what is stored in one object: the groups whose layers look equally far back.

- Full attention needs every block. An object that ends with block e holds those since the last
  object boundary.
- A sliding window of W tokens needs the W - 1 tokens before the next one, so of a prefix that ends
  with block e the blocks [e - span, e), where span = ceil((W - 1) / block size). vLLM frees what is
  before (its table has the null block, 0, there). An object that ends with block e holds no more
  than ``span`` blocks: whatever prefix goes on from e needs none before.

- A recurrent or convolution layer has a state after each token. vLLM keeps those at some ends of
  blocks, and says which when it computes them. Of a prefix the state at its end is needed: a span
  of one block, and no object elsewhere.

A row of blocks is what the groups of a part have at one position; jobs carry rows one after the
other. All positions are block counts from the start of the prefix.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from moonpool.core.keys import fingerprint
from moonpool.vllm import objects
from moonpool.vllm.objects import I32

Tables = Sequence[Sequence[int]]
"""A request's blocks, group by group."""


@dataclass(frozen=True, slots=True)
class Part:
    """Groups whose blocks are stored together.

    groups: their numbers, the first layer's first; layers: the names of each group's layers;
    window: tokens that a layer attends to, span: blocks of a prefix that are needed; 0: all;
    state: whether a block is the state after its last token, kept at some ends only.
    """

    number: int = 0
    groups: tuple[int, ...] = (0,)
    layers: tuple[tuple[str, ...], ...] = ((),)
    window: int = 0
    span: int = 0
    state: bool = False

    @property
    def width(self) -> int:
        """Blocks in a row."""
        return len(self.groups)

    def starts(self, ends: I32, stride: int) -> I32:
        """Return the block at which each object begins; ``stride``: blocks in a full object."""
        boundaries = objects.starts_of(ends, stride)
        return np.maximum(boundaries, ends - self.span) if self.span else boundaries

    def first_needed(self, end: int) -> int:
        """Return the first block that a prefix of ``end`` blocks needs."""
        return max(0, end - self.span) if self.span else 0

    def rows(self, tables: Tables, first: int, last: int) -> list[int]:
        """Return the rows [first, last), as far as they are there, one after the other."""
        columns = [tables[group][first:last] for group in self.groups]
        if len(columns) == 1:
            return list(columns[0])
        return [block for row in zip(*columns, strict=False) for block in row]

    def has(self, tables: Tables, first: int, last: int) -> bool:
        """Whether all of the rows [first, last) are there."""
        return all(
            last <= len(tables[group]) and 0 not in tables[group][first:last]
            for group in self.groups
        )

    def first_kept(self, tables: Tables, first: int, last: int) -> int:
        """Return the first of [first, last) at which there is a block: none is before a window."""
        table = tables[self.groups[0]]
        return next((at for at in range(first, min(last, len(table))) if table[at]), first)


WHOLE = (Part(),)
"""A model of one group that attends to everything."""


def windowed(window: int, block_size: int, **more: Any) -> Part:
    """Return the part of layers that attend to ``window`` tokens, 0: all."""
    span = max(1, -(-(window - 1) // block_size)) if window else 0
    return Part(**{"window": window, "span": span, **more})


def parts_of(kv_cache_config: Any, block_size: int) -> tuple[Part, ...]:
    """Return a model's parts: full attention first, then windows from the longest on, then states.

    Of a cache that ``support.check_cache`` takes.
    """
    alike: dict[tuple[bool, int], list[int]] = {}
    for number, group in enumerate(kv_cache_config.kv_cache_groups):
        spec = group.kv_cache_spec
        alike.setdefault((is_state(spec), window_of(spec)), []).append(number)
    names = [tuple(group.layer_names) for group in kv_cache_config.kv_cache_groups]
    return tuple(
        windowed(
            window,
            block_size,
            number=number,
            groups=tuple(groups),
            layers=tuple(names[group] for group in groups),
            **({"span": 1, "state": True} if state else {}),
        )
        for number, ((state, window), groups) in enumerate(
            sorted(alike.items(), key=lambda one: (one[0][0], one[0][1] > 0, -one[0][1]))
        )
    )


def is_state(spec: Any) -> bool:
    """Whether a group's layers are recurrent or convolutions."""
    return type(getattr(spec, "first_spec", spec)).__name__ == "MambaSpec"


def with_states(tables: Tables, states: Mapping[int, int], end: int) -> list[Sequence[int]]:
    """Return tables in which the groups that have a state at ``end`` have nothing else."""
    return [
        [0] * (end - 1) + [states[group]] if group in states else table
        for group, table in enumerate(tables)
    ]


def window_of(spec: Any) -> int:
    """Return the tokens that a group's layers attend to; 0 for all of them."""
    layers = getattr(spec, "kv_cache_specs", {"": spec}).values()
    # Full attention whose mask is a window keeps all its blocks.
    return max(
        int(layer.sliding_window) if type(layer).__name__ == "SlidingWindowSpec" else 0
        for layer in layers
    )


def begins_anew(parts: Sequence[Part]) -> bool:
    """Whether a load that failed is of no use at all, so that the request is computed from its
    beginning: what comes before the first bad block is not all there."""
    return len(parts) > 1 or bool(parts[0].window)


class Keyspace:
    """The namespaces of a model's objects: of each part, one for each shard."""

    def __init__(self, parts: Sequence[Part] = WHOLE, shards: Sequence[str] = ("",)) -> None:
        """shards: names of what an object is split into, see ``shards``; "": it is not split."""
        self.parts, self.shards = tuple(parts), tuple(shards)

    def of(self, namespace: bytes, part: int) -> list[bytes]:
        """Return the namespaces of a part's shards."""
        return [namespace_of(namespace, part, shard) for shard in self.shards]

    def all_of(self, namespace: bytes) -> list[bytes]:
        """Return the namespaces of all shards of all parts."""
        return [each for part in self.parts for each in self.of(namespace, part.number)]

    @property
    def states(self) -> list[Part]:
        """The parts that are there at some ends only."""
        return [part for part in self.parts if part.state]

    @property
    def single(self) -> bool:
        """Whether there is one object for each end of a prefix."""
        return len(self.parts) == len(self.shards) == 1


def namespace_of(namespace: bytes, part: int, shard: str = "") -> bytes:
    """Return the namespace of a part's objects, or of one shard of them."""
    if not part and not shard:
        return namespace
    return fingerprint(namespace.hex(), "part", str(part), "shard", shard)
