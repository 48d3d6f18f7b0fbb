"""The region table against tensors made by ``as_strided`` in every order that vLLM knows."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import numpy as np
import pytest

from moonpool.errors import ConfigError
from moonpool.vllm import compat, layout
from moonpool.vllm.layout import RegionTable

torch = pytest.importorskip("torch")

# Physical order of [L, B, H, N, C], as in vllm.v1.kv_cache_layout.KVCacheLayout.
LAYOUTS = {
    "LBHNC": (0, 1, 2, 3, 4),
    "LBNHC": (0, 1, 3, 2, 4),
    "LHBNC": (0, 2, 1, 3, 4),
    "BLHNC": (1, 0, 2, 3, 4),
    "BLNHC": (1, 0, 3, 2, 4),
    "BHLNC": (1, 2, 0, 3, 4),
}
LAYERS, BLOCKS, HEADS, TOKENS, CONTENT = 3, 5, 2, 4, 6


@dataclass
class Cache:
    """KV memory filled with the flat logical index [block, layer, head, token, content]."""

    tensors: dict[str, object]
    raw: object


def make(name: str, *, pad: int = 0, kernel_split: int = 1) -> Cache:
    sizes = (LAYERS, BLOCKS * kernel_split, HEADS, TOKENS // kernel_split, CONTENT)
    order = LAYOUTS[name]
    strides, step = [0] * 5, 1
    for place, dim in reversed(list(enumerate(order))):
        strides[dim] = step
        step *= sizes[dim]
        if pad and place == 2:
            step += pad
    raw = torch.full((step + 64,), -1.0, dtype=torch.float32)
    view = torch.as_strided(raw, sizes, strides)
    logical = torch.arange(BLOCKS * LAYERS * HEADS * TOKENS * CONTENT, dtype=torch.float32)
    shaped = logical.view(BLOCKS, LAYERS, HEADS, kernel_split, TOKENS // kernel_split, CONTENT)
    # To [layer, block, kernel block, head, token, content], then join block and kernel block.
    view.copy_(shaped.permute(1, 0, 3, 2, 4, 5).reshape(sizes))
    return Cache({f"model.layers.{n}.attn": view[n] for n in range(LAYERS)}, raw)


def probe(cache: Cache) -> RegionTable:
    return layout.probe(cache.tensors, list(cache.tensors), BLOCKS, TOKENS)


def read(table: RegionTable, blocks: list[int]) -> np.ndarray:
    starts = np.array([0, len(blocks)], np.int64)
    pieces = table.pieces(np.array(blocks, np.int32), starts)
    parts = [
        ctypes.string_at(address, length)
        for address, length in zip(pieces.addresses.tolist(), pieces.lengths.tolist(), strict=True)
    ]
    return np.frombuffer(b"".join(parts), np.float32)


def payload(block: int, order: str, kernel_split: int = 1) -> list[float]:
    """A block's content in the order that a table names."""
    size = LAYERS * HEADS * TOKENS * CONTENT
    logical = np.arange(block * size, (block + 1) * size, dtype=np.float32)
    shaped = logical.reshape(LAYERS, HEADS, kernel_split, TOKENS // kernel_split, CONTENT)
    axes = ["LHSNC".index(letter) for letter in order if letter in "LHSNC"]
    axes += [at for at in range(5) if at not in axes]
    return shaped.transpose(axes).ravel().tolist()


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_payload_is_in_the_order_that_the_table_names(name: str) -> None:
    table = probe(cache := make(name))
    size = LAYERS * HEADS * TOKENS * CONTENT
    assert table.block_bytes == size * 4
    expected = [value for b in (4, 0, 2) for value in payload(b, table.order)]
    assert read(table, [4, 0, 2]).tolist() == expected
    assert len(table.storages) == 1
    del cache


@pytest.mark.parametrize(
    ("name", "order", "pieces"),
    [
        ("LBHNC", "LHNC", LAYERS),
        ("LBNHC", "LNHC", LAYERS),
        ("LHBNC", "LHNC", LAYERS * HEADS),
        ("BLHNC", "LHNC", 1),
        ("BLNHC", "LNHC", 1),
        ("BHLNC", "HLNC", 1),
    ],
)
def test_runs_are_as_long_as_the_layout_allows(name: str, order: str, pieces: int) -> None:
    """Engines share where their orders are equal, however far apart their blocks lie."""
    cache = make(name)
    table = probe(cache)
    assert (table.order, len(table.bases)) == (order, pieces)


# How vLLM before 0.29 makes them: the sizes it calls a layer by, and their order in memory.
OLD = {
    "FlashAttention, NHD": ((BLOCKS, 2, TOKENS, HEADS, CONTENT), (0, 1, 2, 3, 4), "LKNHD"),
    "FlashAttention, HND": ((BLOCKS, 2, TOKENS, HEADS, CONTENT), (0, 1, 3, 2, 4), "LKHND"),
    "keys first": ((2, BLOCKS, TOKENS, HEADS, CONTENT), (0, 1, 2, 3, 4), "LKNHD"),
    "FlashAttention 0.26": ((BLOCKS, HEADS, TOKENS, CONTENT), (0, 2, 1, 3), "LNHC"),
}


@pytest.mark.parametrize("name", OLD)
def test_layers_of_their_own_before_0_29(name: str) -> None:
    sizes, memory_order, order = OLD[name]
    tensors = {}
    for layer in range(LAYERS):
        physical = torch.arange(int(np.prod(sizes)), dtype=torch.float32) + 1000 * layer
        shaped = physical.view([sizes[dim] for dim in memory_order])
        tensors[f"model.layers.{layer}.attn"] = shaped.permute(
            *(memory_order.index(dim) for dim in range(len(sizes)))
        )
    table = layout.probe(tensors, list(tensors), BLOCKS, TOKENS)
    assert table.order == order
    assert len(table.bases) == LAYERS * (2 if name == "keys first" else 1)
    blocks = sizes.index(BLOCKS)
    expected = [
        value
        for tensor in tensors.values()
        for value in tensor.select(blocks, 3)
        .permute(*(d - (d > blocks) for d in memory_order if d != blocks))
        .reshape(-1)
        .tolist()
    ]
    assert read(table, [3]).tolist() == expected


class CrossNHD:
    """As FlashAttention of vLLM 0.24 says it; the sizes in memory are [B, L, 2, N, H, D]."""

    @staticmethod
    def get_kv_cache_stride_order(include_num_layers_dimension: bool = False) -> tuple[int, ...]:
        return (1, 0, 2, 3, 4, 5) if include_num_layers_dimension else (0, 1, 2, 3, 4)


class CrossHND:
    """The sizes in memory are [B, H, L, 2, N, D]."""

    @staticmethod
    def get_kv_cache_stride_order(include_num_layers_dimension: bool = False) -> tuple[int, ...]:
        return (1, 4, 0, 2, 3, 5) if include_num_layers_dimension else (0, 1, 3, 2, 4)


class Plain:
    """A backend that knows nothing of layers."""


@pytest.mark.parametrize(
    ("backend", "order", "pieces"),
    [(CrossNHD, "LKNHD", 1), (CrossHND, "HLKND", 1), (Plain, "LKNHD", LAYERS)],
)
def test_a_tensor_of_all_layers_before_0_29(backend: type, order: str, pieces: int) -> None:
    sizes = (LAYERS, BLOCKS, 2, TOKENS, HEADS, CONTENT)
    ask = getattr(backend, "get_kv_cache_stride_order", None)
    memory_order = ask(include_num_layers_dimension=True) if ask else tuple(range(6))
    raw = torch.arange(int(np.prod(sizes)), dtype=torch.float32)
    raw = raw.view([sizes[dim] for dim in memory_order])
    names = [f"model.layers.{n}.attn" for n in range(LAYERS)]
    table = layout.probe(compat.layers_of(raw, backend, names), names, BLOCKS, TOKENS)
    assert (table.order, len(table.bases)) == (order, pieces)
    block = raw.select(memory_order.index(1), 2)
    assert read(table, [2]).tolist() == block.reshape(-1).tolist()


def test_layers_packed_into_a_block_are_one_run() -> None:
    """vLLM 0.24 with ``block_stride``: each layer a slice of the block's row."""
    page = 2 * TOKENS * HEADS * CONTENT
    raw = torch.arange(BLOCKS * LAYERS * page, dtype=torch.float32)
    rows = raw.view(BLOCKS, LAYERS * page)
    tensors = {
        f"model.layers.{n}.attn": rows[:, n * page : (n + 1) * page].view(
            BLOCKS, 2, TOKENS, HEADS, CONTENT
        )
        for n in range(LAYERS)
    }
    table = layout.probe(tensors, list(tensors), BLOCKS, TOKENS)
    assert (table.order, len(table.bases)) == ("LKNHD", 1)
    assert read(table, [4]).tolist() == rows[4].tolist()


@pytest.mark.parametrize("name", ["LBHNC", "LBNHC"])
def test_blocks_that_the_kernel_splits_are_put_together(name: str) -> None:
    cache = make(name, kernel_split=2)
    table = probe(cache)
    assert table.order == {"LBHNC": "LS2HNC", "LBNHC": "LNHC"}[name]
    split = 2 if "S2" in table.order else 1
    assert read(table, [1]).tolist() == payload(1, table.order, split)


@pytest.mark.parametrize("name", ["LBHNC", "LBNHC", "BLHNC", "BLNHC"])
def test_the_padding_of_a_page_is_not_part_of_the_payload(name: str) -> None:
    """Weakness 27."""
    cache = make(name, pad=32)
    table = probe(cache)
    size = LAYERS * HEADS * TOKENS * CONTENT
    assert table.block_bytes == size * 4
    assert read(table, [3]).tolist() == payload(3, table.order)


def test_layers_come_in_the_order_of_their_numbers() -> None:
    names = ["model.layers.10.attn", "model.layers.9.attn", "model.layers.0.attn"]
    assert sorted(names, key=layout.natural_order) == names[::-1]


def test_blocks_of_the_engines_own_hit_go_to_scratch_memory() -> None:
    cache = make("LBHNC")
    table = probe(cache)
    starts = np.array([0, 2, 4], np.int64)
    pieces = table.pieces(np.array([1, 2, 3, 4], np.int32), starts, 1, 1 << 20)
    run = len(table.bases)
    size = table.block_bytes
    assert pieces.addresses[:run].tolist() == [(1 << 20) + size * n // run for n in range(run)]
    assert pieces.addresses[run] == table.bases[0] + 2 * table.strides[0]
    assert pieces.sizes().tolist() == [2 * size, 2 * size]
    del cache


def test_overlaid_rows_are_refused() -> None:
    raw = torch.zeros(4096)
    view = torch.as_strided(raw, (BLOCKS, HEADS, TOKENS, CONTENT), (8, 4, 6, 1))
    with pytest.raises(ConfigError, match="overlap"):
        layout.probe({"a": view}, ["a"], BLOCKS, TOKENS)


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ((3, BLOCKS, TOKENS, HEADS, CONTENT), "shape"),
        ((BLOCKS, TOKENS, CONTENT), "shape"),
        ((BLOCKS + 1, HEADS, TOKENS, CONTENT), "shape"),
        ((BLOCKS, HEADS, TOKENS // 2, CONTENT), "states in a block"),
    ],
)
def test_unknown_shapes_are_refused_with_the_reason(shape: tuple[int, ...], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        layout.probe({"a": torch.zeros(shape)}, ["a"], BLOCKS, TOKENS)


def test_a_layer_of_several_tensors_is_refused() -> None:
    with pytest.raises(ConfigError, match="no single tensor"):
        layout.probe({"a": [torch.zeros(1)]}, ["a"], BLOCKS, TOKENS)


def test_a_view_of_bytes_and_one_of_half_floats_are_addressed_in_bytes() -> None:
    for dtype, size in ((torch.uint8, 1), (torch.bfloat16, 2)):
        tensor = torch.zeros((BLOCKS, HEADS, TOKENS, CONTENT), dtype=dtype)
        table = layout.probe({"a": tensor}, ["a"], BLOCKS, TOKENS)
        assert table.block_bytes == HEADS * TOKENS * CONTENT * size
        assert table.strides.tolist() == [table.block_bytes]


def test_a_state_travels_without_its_page() -> None:
    """vLLM pads a convolution's 512 bytes to the page of an attention layer."""
    page, useful = 65536, 512
    raw = torch.zeros(BLOCKS * page, dtype=torch.int8)
    view = torch.as_strided(raw, (BLOCKS, 1, 1, useful), (page, useful, useful, 1))
    table = layout.probe({"l.conv": view}, ["l.conv"], BLOCKS, 1)
    assert (table.block_bytes, table.lengths.tolist()) == (useful, [useful])
    assert table.strides.tolist() == [page]


def test_groups_that_overlay_the_same_memory_are_joined_by_rows() -> None:
    """A row is a block of each group; a block is in one group at a time, all in one memory."""
    one, other = make("LBHNC"), make("BLHNC")
    tables = [probe(one), probe(other)]
    joined = layout.joined(tables)
    assert joined.width == 2
    assert joined.block_bytes == sum(table.block_bytes for table in tables)
    ids = np.array([1, 4, 3, 0], np.int32)
    pieces = joined.pieces(ids, np.array([0, 1, 2], np.int64))
    content = b"".join(
        ctypes.string_at(int(at), int(size))
        for at, size in zip(pieces.addresses, pieces.lengths, strict=True)
    )
    expected = [
        read(tables[0], [1]),
        read(tables[1], [4]),
        read(tables[0], [3]),
        read(tables[1], [0]),
    ]
    assert content == b"".join(each.tobytes() for each in expected)
    assert joined.bytes_of(ids) == len(content)
