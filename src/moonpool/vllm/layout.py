"""Where a block's bytes lie in the engine's KV memory, whatever layout vLLM chose.

The payload of an object does not depend on the layout: for each block, for each layer, the bytes
in the order [head][token][content]. The table lists, for one block, the runs of memory that make
up this payload in order; a batch of blocks is then ``base + id * stride`` in NumPy.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from moonpool.errors import ConfigError
from moonpool.transport.base import I64, U64, Pieces
from moonpool.vllm.objects import I32

RUNS_PER_BLOCK_MAX = 1 << 16


@dataclass(frozen=True, slots=True)
class RegionTable:
    """The runs of one block: run r of block b starts at ``bases[r] + b * strides[r]``.

    bases, strides, lengths: (r,) uint64, bytes, in payload order. storages: (address, bytes) of
    the memory they lie in.
    """

    bases: U64
    strides: U64
    lengths: U64
    num_blocks: int
    storages: tuple[tuple[int, int], ...]

    @property
    def block_bytes(self) -> int:
        """Useful bytes of a block over all layers; padding is not counted."""
        return int(self.lengths.sum())

    def pieces(self, block_ids: I32, starts: I64, scratch_blocks: int = 0, at: int = 0) -> Pieces:
        """Return the memory of n objects.

        block_ids: (m,) of all objects in turn; starts: (n + 1,) object i is
        ``block_ids[starts[i]:starts[i + 1]]``. The first ``scratch_blocks`` blocks lie one after
        the other at address ``at`` instead of in the KV memory.
        """
        ids = block_ids.astype(np.uint64)[:, None]
        addresses = self.bases[None, :] + ids * self.strides[None, :]
        if scratch_blocks:
            inside = np.cumsum(self.lengths) - self.lengths
            blocks = np.arange(scratch_blocks, dtype=np.uint64)[:, None]
            addresses[:scratch_blocks] = (
                np.uint64(at) + blocks * np.uint64(self.block_bytes) + inside[None, :]
            )
        lengths = np.broadcast_to(self.lengths, addresses.shape)
        return Pieces(addresses.ravel(), lengths.ravel(), starts * len(self.bases))


def probe(
    caches: Mapping[str, Any], layers: Sequence[str], num_blocks: int, block_size: int
) -> RegionTable:
    """Return the table for the layers' KV tensors, each a view [blocks, heads, tokens, content].

    Raises ConfigError with the reason for a tensor whose bytes cannot be addressed this way.
    """
    parts = [
        _layer_runs(name, caches[name], num_blocks, block_size)
        for name in sorted(layers, key=natural_order)
    ]
    bases, strides, lengths = (np.concatenate(column) for column in zip(*parts, strict=True))
    bases, strides, lengths = _merged(bases, strides, lengths)
    storages = sorted({_storage_of(caches[name]) for name in layers})
    if len(bases) > RUNS_PER_BLOCK_MAX:
        raise ConfigError(
            f"KV layout: a block lies in {len(bases)} pieces, at most {RUNS_PER_BLOCK_MAX} are "
            "supported; choose a head-major layout (VLLM_KV_CACHE_LAYOUT=BLHNC or LBHNC)"
        )
    return RegionTable(bases, strides, lengths, num_blocks, tuple(storages))


def natural_order(name: str) -> list[tuple[int, str]]:
    """Return a sort key under which layer 10 comes after layer 9."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


def _layer_runs(name: str, cache: Any, num_blocks: int, block_size: int) -> tuple[U64, U64, U64]:
    if not hasattr(cache, "data_ptr"):
        raise ConfigError(f"KV layout: layer {name} has no single tensor ({type(cache).__name__})")
    shape, item = tuple(cache.shape), int(cache.element_size())
    strides = tuple(int(s) * item for s in cache.stride())
    split = _kernel_blocks(name, shape, num_blocks, block_size)
    _, heads, rows, content = shape
    # Outer to inner, as in the payload; a block that the kernel splits gives one more dimension.
    dims = [(heads, strides[1]), (split, strides[0]), (rows, strides[2]), (content, strides[3])]
    _require_dense(name, [*dims, (num_blocks, strides[0] * split)], item)
    offsets, run = _runs(dims, item)
    base = int(cache.data_ptr())
    _require_inside(name, cache, base, num_blocks, strides[0] * split, int(offsets.max()) + run)
    count = len(offsets)
    return (
        offsets + np.uint64(base),
        np.full(count, strides[0] * split, np.uint64),
        np.full(count, run, np.uint64),
    )


def _kernel_blocks(name: str, shape: tuple[int, ...], num_blocks: int, block_size: int) -> int:
    """Return into how many kernel blocks the tensor cuts each of vLLM's blocks."""
    if len(shape) != 4 or shape[0] % num_blocks or shape[0] == 0:
        raise ConfigError(
            f"KV layout: layer {name} has shape {shape}; "
            f"[{num_blocks} blocks or a multiple, heads, tokens, content] is supported"
        )
    split = shape[0] // num_blocks
    if split * shape[2] != block_size:
        raise ConfigError(
            f"KV layout: layer {name} holds {split * shape[2]} states in a block of {block_size} "
            "tokens; one state for each token is supported"
        )
    return split


def _require_dense(name: str, dims: list[tuple[int, int]], item: int) -> None:
    """Refuse views in which two elements share memory, or an element is not whole."""
    extent = item
    for count, stride in sorted((d for d in dims if d[0] > 1), key=lambda d: d[1]):
        if stride < extent:
            raise ConfigError(
                f"KV layout: rows of layer {name} overlap (stride {stride} B inside a run of "
                f"{extent} B); dense rows are supported"
            )
        extent = stride * (count - 1) + extent


def _runs(dims: list[tuple[int, int]], item: int) -> tuple[U64, int]:
    """Return the offsets of one block's contiguous runs in payload order, and their length."""
    outer, run = [d for d in dims if d[0] > 1], item
    while outer and outer[-1][1] == run:
        run *= outer.pop()[0]
    offsets = np.zeros(1, np.uint64)
    for count, stride in outer:
        steps = np.arange(count, dtype=np.uint64) * np.uint64(stride)
        offsets = (offsets[:, None] + steps[None, :]).ravel()
    return offsets, run


def _merged(bases: U64, strides: U64, lengths: U64) -> tuple[U64, U64, U64]:
    """Join runs that lie one after the other in every block, as all layers do in BLHNC."""
    joined = (bases[:-1] + lengths[:-1] == bases[1:]) & (strides[:-1] == strides[1:])
    first: npt.NDArray[np.int64] = np.flatnonzero(np.concatenate(([True], ~joined)))
    return bases[first], strides[first], np.add.reduceat(lengths, first)


def _storage_of(cache: Any) -> tuple[int, int]:
    storage = cache.untyped_storage()
    return int(storage.data_ptr()), int(storage.nbytes())


def _require_inside(
    name: str, cache: Any, base: int, num_blocks: int, stride: int, span: int
) -> None:
    start, size = _storage_of(cache)
    if base < start or base + (num_blocks - 1) * stride + span > start + size:
        raise ConfigError(f"KV layout: layer {name} reaches past its memory of {size} B")
