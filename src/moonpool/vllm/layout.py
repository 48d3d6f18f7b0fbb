"""Where a block's bytes lie in the engine's KV memory, whatever layout vLLM chose.

The payload of an object is, block by block, the bytes of all layers in the order in which they lie
in the engine's memory: then they are few, long runs. Engines whose orders differ must not share
objects, so the order has a name, which is part of the namespace. The table lists, for one block,
the runs of memory that make up this payload; a batch of blocks is then ``base + id * stride``.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

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
    the memory they lie in. order: names the payload's order, from the outermost dimension in:
    L layer, K key or value, S part of a block that the kernel splits, H head, N token, C content
    (D, where K is a dimension of its own); dimensions of size 1 are left out.

    Where an object holds the blocks of several groups, "a block" is a row of ``width`` blocks, one
    of each group; run r is of the row's block ``columns[r]``.
    """

    bases: U64
    strides: U64
    lengths: U64
    num_blocks: int
    storages: tuple[tuple[int, int], ...]
    order: str = ""
    columns: npt.NDArray[np.intp] | None = None
    width: int = 1

    @property
    def block_bytes(self) -> int:
        """Useful bytes of a block over all layers; padding is not counted."""
        return int(self.lengths.sum())

    def bytes_of(self, block_ids: I32) -> int:
        """Return the useful bytes of rows of blocks."""
        return len(block_ids) // self.width * self.block_bytes

    def pieces(self, block_ids: I32, starts: I64, scratch_blocks: int = 0, at: int = 0) -> Pieces:
        """Return the memory of n objects.

        block_ids: (m * width,) rows of all objects in turn; starts: (n + 1,) object i is the rows
        ``starts[i]`` to ``starts[i + 1]``. The first ``scratch_blocks`` rows lie one after the
        other at address ``at`` instead of in the KV memory.
        """
        ids = block_ids.astype(np.uint64).reshape(-1, self.width)
        if self.columns is not None:
            ids = ids[:, self.columns]
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
    """Return the table for the layers' KV tensors.

    Each is a view [blocks, heads, tokens, content], or, before vLLM 0.29, [blocks, 2, tokens,
    heads, size] or [2, blocks, tokens, heads, size], in any order of memory. Raises ConfigError
    with the reason for a tensor whose bytes cannot be addressed this way.
    """
    views = [
        _view(name, caches[name], num_blocks, block_size)
        for name in sorted(layers, key=natural_order)
    ]
    step = _step(views)
    groups = [[view] for view in views] if step is None else [views]
    parts = [_block_runs(group, step, num_blocks) for group in groups]
    bases, strides, lengths = (np.concatenate(column) for column in zip(*parts, strict=True))
    bases, strides, lengths = _merged(bases, strides, lengths)
    if len(bases) > RUNS_PER_BLOCK_MAX:
        raise ConfigError(
            f"KV layout: a block lies in {len(bases)} pieces, at most {RUNS_PER_BLOCK_MAX} are "
            "supported; choose a head-major layout (VLLM_KV_CACHE_LAYOUT=BLHNC or LBHNC)"
        )
    storages = sorted({view.storage for view in views})
    return RegionTable(bases, strides, lengths, num_blocks, tuple(storages), _order(views, step))


def joined(tables: Sequence[RegionTable]) -> RegionTable:
    """Return the table of rows of blocks, one of each of these tables (groups)."""
    if len(tables) == 1:
        return tables[0]
    orders = list(dict.fromkeys(table.order for table in tables))
    return RegionTable(
        np.concatenate([table.bases for table in tables]),
        np.concatenate([table.strides for table in tables]),
        np.concatenate([table.lengths for table in tables]),
        tables[0].num_blocks,
        tuple(sorted({storage for table in tables for storage in table.storages})),
        ",".join(orders),
        np.repeat(np.arange(len(tables)), [len(table.bases) for table in tables]),
        len(tables),
    )


def natural_order(name: str) -> list[tuple[int, str]]:
    """Return a sort key under which layer 10 comes after layer 9."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


class _Dim(NamedTuple):
    name: str
    size: int
    stride: int


class _View(NamedTuple):
    """One layer's tensor in bytes: block b starts at ``base + b * block_stride``."""

    name: str
    base: int
    item: int
    block_stride: int
    dims: tuple[_Dim, ...]
    storage: tuple[int, int]


def _view(name: str, cache: Any, num_blocks: int, block_size: int) -> _View:
    if not hasattr(cache, "data_ptr"):
        raise ConfigError(f"KV layout: layer {name} has no single tensor ({type(cache).__name__})")
    shape, item = tuple(cache.shape), int(cache.element_size())
    names = _dim_names(name, shape, num_blocks)
    dims = {
        n: _Dim(n, c, int(s) * item) for n, c, s in zip(names, shape, cache.stride(), strict=True)
    }
    blocks = dims.pop("B")
    split = blocks.size // num_blocks
    if split * dims["N"].size != block_size:
        raise ConfigError(
            f"KV layout: layer {name} holds {split * dims['N'].size} states in a block of "
            f"{block_size} tokens; one state for each token is supported"
        )
    inside = (_Dim("S", split, blocks.stride), *dims.values())
    return _View(
        name,
        int(cache.data_ptr()),
        item,
        blocks.stride * split,
        tuple(dim for dim in inside if dim.size > 1),
        _storage_of(cache),
    )


def _dim_names(name: str, shape: tuple[int, ...], num_blocks: int) -> str:
    """Return what a tensor's dimensions are; B counts vLLM's blocks or a multiple of them."""

    def blocks(count: int) -> bool:
        return count > 0 and count % num_blocks == 0

    if len(shape) == 4 and blocks(shape[0]):
        return "BHNC"
    if len(shape) == 5 and shape[1] == 2 and blocks(shape[0]):
        return "BKNHD"
    if len(shape) == 5 and shape[0] == 2 and blocks(shape[1]):
        return "KBNHD"
    raise ConfigError(
        f"KV layout: layer {name} has shape {shape}; [{num_blocks} blocks or a multiple, heads, "
        "tokens, content] or [blocks, 2, tokens, heads, size] is supported"
    )


def _step(views: Sequence[_View]) -> int | None:
    """Return the distance of neighbouring layers, if all lie alike and equally far apart."""
    steps = {b.base - a.base for a, b in itertools.pairwise(views)}
    alike = {(view.item, view.block_stride, view.dims, view.storage) for view in views}
    if len(steps) != 1 or len(alike) != 1:
        return None
    step = steps.pop()
    return step if step > 0 else None


def _in_memory_order(dims: Sequence[_Dim]) -> list[_Dim]:
    return sorted(dims, key=lambda dim: -dim.stride)


def _order(views: Sequence[_View], step: int | None) -> str:
    if step is not None:
        return _label((_Dim("L", len(views), step), *views[0].dims))
    each = [_label(view.dims) for view in views]
    return "L" + (each[0] if len(set(each)) == 1 else ",".join(each))


def _label(dims: Sequence[_Dim]) -> str:
    """Name the order of dimensions. How far a block is split decides it too, except where its
    parts are next to each other and so the tokens in order."""
    ordered = _in_memory_order(dims)
    following = [dim.name for dim in ordered[1:]] + [""]
    return "".join(
        f"S{dim.size}" if dim.name == "S" else dim.name
        for dim, inner in zip(ordered, following, strict=True)
        if dim.name != "S" or inner != "N"
    )


def _block_runs(views: Sequence[_View], step: int | None, num_blocks: int) -> tuple[U64, U64, U64]:
    """Return bases, strides and lengths of one block's runs in layers that lie alike."""
    first = views[0]
    layers = () if step is None else (_Dim("L", len(views), step),)
    dims = _in_memory_order((*layers, *first.dims))
    _require_dense(first.name, [*dims, _Dim("B", num_blocks, first.block_stride)], first.item)
    offsets, run = _runs(dims, first.item)
    _require_inside(first, num_blocks, int(offsets.max()) + run)
    count = len(offsets)
    return (
        offsets + np.uint64(first.base),
        np.full(count, first.block_stride, np.uint64),
        np.full(count, run, np.uint64),
    )


def _require_dense(name: str, dims: Sequence[_Dim], item: int) -> None:
    """Refuse views in which two elements share memory, or an element is not whole."""
    extent = item
    for _, count, stride in sorted((d for d in dims if d.size > 1), key=lambda d: d.stride):
        if stride < extent:
            raise ConfigError(
                f"KV layout: rows of layer {name} overlap (stride {stride} B inside a run of "
                f"{extent} B); dense rows are supported"
            )
        extent = stride * (count - 1) + extent


def _runs(dims: Sequence[_Dim], item: int) -> tuple[U64, int]:
    """Return the offsets of one block's contiguous runs in payload order, and their length."""
    outer, run = list(dims), item
    while outer and outer[-1].stride == run:
        run *= outer.pop().size
    offsets = np.zeros(1, np.uint64)
    for _, count, stride in outer:
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


def _require_inside(view: _View, num_blocks: int, span: int) -> None:
    start, size = view.storage
    end = view.base + (num_blocks - 1) * view.block_stride + span
    if view.base < start or end > start + size:
        raise ConfigError(f"KV layout: layer {view.name} reaches past its memory of {size} B")
