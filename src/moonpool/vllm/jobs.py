"""Loads and saves as data. Block positions are counts from the start of a request's prefix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from moonpool.errors import AlreadyExistsError
from moonpool.vllm.objects import I32


@dataclass(frozen=True, slots=True)
class LoadJob:
    """Objects to load for a request that waits.

    names: n packed digests; starts, ends: (n,) blocks; block_ids: (ends[-1] - starts[0],) the
    engine's blocks from the first object's start, rows of them where the part has several groups;
    blocks before ``first_block`` are the engine's already and must not be written. part: of the
    layers; to a runner, the number of its table. A request's jobs of all parts have the same
    generation, until a worker numbers its own. No objects: a load that cannot be done, all blocks
    fail. With ``patience_s`` the objects may be on their way still: they are waited for as long as
    less than so many seconds pass without progress or a sign of life of the handoff ``transfer``.
    """

    request_id: str
    generation: int
    namespace: bytes
    names: bytes
    starts: I32
    ends: I32
    block_ids: I32
    first_block: int
    transfer: str = ""
    patience_s: float = 0.0
    part: int = 0

    @property
    def first_position(self) -> int:
        """Position of ``block_ids[0]``."""
        return int(self.starts[0]) if len(self.starts) else self.first_block

    def ids_from(self, position: int) -> list[int]:
        """Return the engine's blocks from a position on, those of the engine's own hit left out."""
        start = max(position, self.first_block) - self.first_position
        return [int(block) for block in self.block_ids[start:]]


@dataclass(frozen=True, slots=True)
class LoadDone:
    """How a load ended: blocks before ``good_blocks`` hold the right bytes.

    failed: (code, ``objects.mark``) of the objects that failed.
    """

    request_id: str
    generation: int
    good_blocks: int
    failed: tuple[tuple[int, bytes], ...] = ()


@dataclass(frozen=True, slots=True)
class SaveJob:
    """Objects to save; their blocks stay pinned until SaveDone.

    names, parents: n packed digests; counts: (n,) blocks of each; block_ids: (sum of counts,), or
    rows of them. part: see LoadJob.
    ``urgent``: another engine waits for them; they go before others.
    """

    job_id: int
    namespace: bytes
    names: bytes
    parents: bytes
    counts: I32
    block_ids: I32
    urgent: bool = False
    part: int = 0


@dataclass(frozen=True, slots=True)
class SaveDone:
    """How a save ended: one code for each object, 0 or negative, or NOT_MINE."""

    job_id: int
    codes: tuple[int, ...]


NOT_MINE: Final = 1
"""The code of an object that another worker saves."""


def join_codes(one: Sequence[int], other: Sequence[int]) -> tuple[int, ...]:
    """Return the codes of objects whose shards ended so: an object is there if all shards are, and
    new if one of them is."""
    return tuple(min(pair, key=_weight) for pair in zip(one, other, strict=True))


def _weight(code: int) -> tuple[int, int]:
    order = {0: 1, AlreadyExistsError.code: 2, NOT_MINE: 3}
    return order.get(code, 0), code


def join_loads(one: LoadDone, other: LoadDone) -> LoadDone:
    """Return how a load has ended that ended so at two workers."""
    return replace(
        one,
        good_blocks=min(one.good_blocks, other.good_blocks),
        failed=tuple(dict.fromkeys(one.failed + other.failed)),
    )
