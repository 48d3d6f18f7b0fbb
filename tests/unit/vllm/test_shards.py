"""What each worker holds of an object, for every size of tensor parallelism."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from moonpool.errors import ConfigError
from moonpool.vllm import layout, shards
from moonpool.vllm.jobs import NOT_MINE, LoadDone, SaveDone
from moonpool.vllm.ranks import Ranks
from moonpool.vllm.shards import Split

torch = pytest.importorskip("torch")

# Physical order of [B, H, N, C] in one layer.
ORDERS = {"HNC": (0, 1, 2, 3), "NHC": (0, 2, 1, 3)}
BLOCKS, TOKENS, CONTENT = 3, 4, 2


@pytest.mark.parametrize("heads", [1, 2, 8, 12])
@pytest.mark.parametrize("workers", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("wanted", [0, 1, 2, 4, 8])
def test_each_head_is_held_and_saved_once(heads: int, workers: int, wanted: int) -> None:
    try:
        split = Split.of(heads, workers, wanted)
    except ConfigError:
        return
    own = max(1, heads // workers)
    savers: dict[tuple[str, int], list[int]] = {}
    for rank in range(workers):
        first = rank * heads // workers
        turn, alike = split.turn(rank)
        for held in split.held_by(rank):
            assert 0 <= held.first_head <= own - held.heads
            where = first + held.first_head
            assert split.names.index(held.name) == where // held.heads
            for name in range(alike):
                if name == turn:
                    savers.setdefault((held.name, name), []).append(rank)
    alike = max(1, workers // heads)
    assert len(savers) == split.count * alike
    assert all(len(ranks) == 1 for ranks in savers.values())


@pytest.mark.parametrize(
    ("heads", "workers", "wanted", "words"),
    [
        (8, 3, 0, "tensor parallelism of 3 with 8 KV heads.*set tensor_parallel_size"),
        (8, 4, 2, "head_shards: 2 is not allowed with 8 KV heads and tensor_parallel_size 4"),
        (8, 1, 3, "head_shards: 3"),
        (1, 2, 2, "head_shards: 2"),
    ],
)
def test_what_does_not_come_out_even_is_refused(
    heads: int, workers: int, wanted: int, words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        Split.of(heads, workers, wanted)


def tensors(order: tuple[int, ...], first: int, heads: int) -> dict[str, object]:
    """Two layers' blocks with some heads; each element says where it is in the model."""
    sizes = (BLOCKS, heads, TOKENS, CONTENT)
    made: dict[str, object] = {}
    for layer in range(2):
        b, h, n, c = np.meshgrid(*(np.arange(size) for size in sizes), indexing="ij")
        value = (((layer * 100 + b) * 100 + h + first) * 100 + n) * 10 + c
        laid = torch.tensor(value, dtype=torch.float32).permute(order).contiguous()
        made[f"l{layer}"] = laid.permute(*(order.index(dim) for dim in range(4)))
    return made


def payload(table: layout.RegionTable, block: int) -> bytes:
    pieces = table.pieces(np.array([block], np.int32), np.array([0, 1], np.int64))
    return b"".join(
        ctypes.string_at(int(at), int(size))
        for at, size in zip(pieces.addresses, pieces.lengths, strict=True)
    )


@pytest.mark.parametrize("order", list(ORDERS))
@pytest.mark.parametrize("count", [4, 8])
def test_engines_of_any_size_store_the_same_shards(order: str, count: int) -> None:
    """What one worker, two workers and four workers store under a shard's name is equal."""
    found: dict[int, dict[str, bytes]] = {}
    orders = set()
    for workers in (1, 2, 4):
        split = Split.of(8, workers, count)
        found[workers] = {}
        for rank in range(workers):
            caches = tensors(ORDERS[order], rank * 8 // workers, 8 // workers)
            for held in split.held_by(rank):
                seen = shards.narrowed(caches, ("l0", "l1"), held)
                table = layout.probe(seen, ("l0", "l1"), BLOCKS, TOKENS)
                orders.add(table.order)
                found[workers][held.name] = payload(table, 2)
    assert len(orders) == 1
    assert len(found[1]) == count
    assert found[1] == found[2] == found[4]


def test_tensors_without_heads_are_refused() -> None:
    caches = {"l": torch.zeros(2, 3, 4, 5, 6)}
    held = Split.of(8, 2).held_by(0)[0]
    with pytest.raises(ConfigError, match=r"layer l.*vLLM 0\.29"):
        shards.narrowed(caches, ("l",), held)


def test_a_job_has_ended_when_it_has_at_every_worker() -> None:
    ranks = Ranks(2)
    assert ranks.loaded(LoadDone("r", 1, 4)) is None
    assert ranks.loaded(LoadDone("q", 2, 6)) is None
    bad = ((-704, b"x" * 16),)
    assert ranks.loaded(LoadDone("r", 1, 2, bad)) == LoadDone("r", 1, 2, bad)
    assert ranks.loaded(LoadDone("q", 2, 6)) == LoadDone("q", 2, 6)
    assert ranks.saved(SaveDone(1, (0, NOT_MINE))) is None
    assert ranks.saved(SaveDone(1, (NOT_MINE, -200))) == SaveDone(1, (0, -200))
    assert Ranks().saved(SaveDone(1, (0,))) == SaveDone(1, (0,))


def test_the_pool_is_used_when_all_workers_are_ready_and_alike() -> None:
    ranks = Ranks(2)
    assert ranks.order(0, "LHNC") == ""
    assert ranks.order(1, "LHNC") == "LHNC"
    assert ranks.order(0, "") == ""
    assert ranks.order(0, "LNHC") == ""
