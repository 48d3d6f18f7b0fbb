"""A replay is read as it was written, and simulated request by request."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from moonpool.errors import ConfigError
from moonpool.sim.fleet.replayed import Site, validate
from moonpool.sim.fleet.traces import Names
from moonpool.sim.hardware import Hardware

BLOCK = 32


def test_blocks_that_do_not_fit_are_equal_as_far_as_all_is_equal() -> None:
    names = Names(trace_tokens=10, block_tokens=32)
    first = names.keys([1, 2, 3, 4, 5, 6, 7], 70)
    assert len(first) == 2
    # 32 tokens reach into the fourth block of 10, 64 into the seventh.
    assert names.keys([1, 2, 3, 4, 5, 6, 9], 70)[0] == first[0]
    assert names.keys([1, 2, 3, 4, 5, 6, 9], 70)[1] != first[1]
    assert names.keys([1, 2, 3, 9, 5, 6, 7], 70)[0] != first[0]
    assert names.keys([1, 2, 3, 4, 5, 6, 7], 70, scope=-2)[0] != first[0]
    assert names.keys([1, 2, 3, 4, 5, 6, 7], 70) == first


def written(directory: Path, cached: list[int]) -> tuple[Path, Path]:
    """Write a replay of two conversations of two turns, on two engines in turn."""
    blocks = [[*range(8)], [*range(20, 28)], [*range(12)], [*range(20, 26), 40, 41]]
    sent = directory / "sent.jsonl"
    lines = [
        {"input_length": 32 * len(b), "hash_ids": b, "session_id": str(number % 2)}
        for number, b in enumerate(blocks)
    ]
    sent.write_text("".join(json.dumps(line) + "\n" for line in lines))
    requests = [
        {
            "number": number,
            "session": str(number % 2),
            "turn": number // 2,
            "endpoint": (number + number // 2) % 2,
            "intended_s": 5.0 * number,
            "sent_s": 5.0 * number + 0.1,
            "prompt_tokens": 32 * len(each),
            "output_tokens": 4,
            "cached_tokens": cached[number],
            "ttft_s": 0.5,
        }
        for number, each in enumerate(blocks)
    ]
    real: dict[str, Any] = {
        "format": "moonpool-e2e/1",
        "options": {"endpoints": ["http://a", "http://b"]},
        "workload": {"block_tokens": 32, "engine_block_tokens": BLOCK},
        "hits": {"hbm_rate": None, "pool_rate": None},
        "requests": requests,
    }
    file = directory / "real.json"
    file.write_text(json.dumps(real))
    return file, sent


def test_hits_by_hand(tmp_path: Path) -> None:
    # The second turns go to the engine that the first did not: the pool has all eight blocks of
    # the one, and of the other the six that are equal; objects are of four blocks, ends apart.
    site = Site(Hardware(kv_bytes=16_384, batch_tokens=512), object_tokens=4 * BLOCK)
    real, sent = written(tmp_path, [0, 0, 8 * BLOCK, 4 * BLOCK])
    found = validate(real, sent, site)
    assert found.same == 4
    assert found.summary.pool_hit_rate == pytest.approx((8 + 4) / (8 + 8 + 12 + 8))
    assert found.rows[0].met


def test_without_the_pool_there_are_none(tmp_path: Path) -> None:
    site = Site(Hardware(kv_bytes=16_384, batch_tokens=512), pool_gb=0.0)
    found = validate(*written(tmp_path, [0, 0, 0, 0]), site)
    assert found.summary.hit_rate == 0.0
    assert found.same == 4


def test_other_files_are_refused(tmp_path: Path) -> None:
    real, sent = written(tmp_path, [0, 0, 0, 0])
    site = Site(Hardware())
    with pytest.raises(ConfigError, match="real"):
        validate(sent, sent, site)
    with pytest.raises(ConfigError, match="real"):
        validate(tmp_path / "none", sent, site)
    sent.write_text('{"input_length": 5, "hash_ids": [], "session_id": "0"}\n')
    with pytest.raises(ConfigError, match="sent"):
        validate(real, sent, site)
