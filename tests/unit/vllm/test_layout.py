"""The region table against tensors made by ``as_strided`` in every order that vLLM knows."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import numpy as np
import pytest

from moonpool.errors import ConfigError
from moonpool.vllm import layout
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


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_payload_is_the_same_whatever_the_layout(name: str) -> None:
    table = probe(cache := make(name))
    size = LAYERS * HEADS * TOKENS * CONTENT
    assert table.block_bytes == size * 4
    expected = np.concatenate([np.arange(b * size, (b + 1) * size) for b in (4, 0, 2)])
    assert read(table, [4, 0, 2]).tolist() == expected.tolist()
    assert len(table.storages) == 1
    del cache


@pytest.mark.parametrize(
    ("name", "pieces"),
    [("LBHNC", LAYERS), ("LHBNC", LAYERS * HEADS), ("BLHNC", 1), ("BHLNC", LAYERS * HEADS)],
)
def test_runs_are_as_long_as_the_layout_allows(name: str, pieces: int) -> None:
    cache = make(name)
    assert len(probe(cache).bases) == pieces


@pytest.mark.parametrize("name", ["LBHNC", "LBNHC"])
def test_blocks_that_the_kernel_splits_are_put_together(name: str) -> None:
    cache = make(name, kernel_split=2)
    size = LAYERS * HEADS * TOKENS * CONTENT
    assert read(probe(cache), [1]).tolist() == list(range(size, 2 * size))


@pytest.mark.parametrize("name", ["LBHNC", "LBNHC", "BLHNC", "BLNHC"])
def test_the_padding_of_a_page_is_not_part_of_the_payload(name: str) -> None:
    """Weakness 27."""
    cache = make(name, pad=32)
    table = probe(cache)
    size = LAYERS * HEADS * TOKENS * CONTENT
    assert table.block_bytes == size * 4
    assert read(table, [3]).tolist() == list(range(3 * size, 4 * size))


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
        ((2, BLOCKS, TOKENS, HEADS, CONTENT), "shape"),
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
