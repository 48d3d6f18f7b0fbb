"""Which requests of a trace are sent, and of what tokens their prompts are."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from moonpool.errors import ConfigError
from moonpool.workload.ideal import IdealCache
from moonpool.workload.prompts import Prompts
from moonpool.workload.selection import Cut, Item, Selection, select
from moonpool.workload.traces import read_trace
from tests.unit.workload.test_traces import _trace


def _item(blocks: list[int], tokens: int, size: int = 8, scope: str = "t") -> Item:
    return Item("s", 0, 0.0, 0.0, tokens, 1, size, scope, np.array(blocks, dtype=np.int64))


def _select(tmp_path: Path, lines: list[dict[str, object]], **cut: float) -> Selection:
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return select(read_trace(path, block_tokens=10), Cut(**cut))  # type: ignore[arg-type]


def _line(time_ms: int, ids: list[int], session: str = "", **more: object) -> dict[str, object]:
    line = {"timestamp": time_ms, "input_length": 10 * len(ids), "output_length": 20}
    return line | {"hash_ids": ids, "session_id": session} | more


@pytest.mark.parametrize("vocabulary", [2, 256, 32_000, 200_019, 1 << 31])
def test_equal_blocks_are_equal_tokens_within_the_vocabulary(vocabulary: int) -> None:
    first, second = Prompts(vocabulary), Prompts(vocabulary)
    prompt = first.prompt(_item([1, 2, 3], 20))
    assert len(prompt) == 20
    assert all(0 <= token < vocabulary for token in prompt)
    assert second.prompt(_item([1, 2, 4], 24))[:16] == prompt[:16]
    if vocabulary > 100:
        assert second.prompt(_item([1, 5], 16))[8:] != prompt[8:16]
        assert Prompts(vocabulary, seed=1).prompt(_item([1, 2, 3], 20)) != prompt
        assert first.prompt(_item([1, 2, 3], 20, scope="other")) != prompt


def test_tokens_are_the_same_in_all_versions_and_on_all_machines() -> None:
    assert Prompts(32_000).block("t", 7, 4).tolist() == [28428, 8999, 22767, 27956]


def test_a_shorter_block_begins_as_a_longer_one() -> None:
    prompts = Prompts(1000)
    assert prompts.block("t", 7, 16).tolist()[:4] == prompts.block("t", 7, 4).tolist()


def test_what_is_kept_is_bounded_and_made_again() -> None:
    small, large = Prompts(1000, kept_tokens=16), Prompts(1000)
    item = _item(list(range(50)), 400)
    assert small.prompt(item) == small.prompt(item) == large.prompt(item)
    assert len(small._kept) <= 2


@pytest.mark.parametrize("vocabulary", [0, 1, (1 << 31) + 1])
def test_a_vocabulary_that_is_none(vocabulary: int) -> None:
    with pytest.raises(ValueError, match="vocabulary"):
        Prompts(vocabulary)


def test_pauses_are_the_traces_or_the_times_between_requests(tmp_path: Path) -> None:
    lines = [
        _line(1000, [1], "a"),
        _line(2000, [9], "b"),
        _line(5000, [1, 2], "a", delay=1500),
        _line(7000, [9, 8], "b"),
    ]
    found = _select(tmp_path, lines)
    assert [(each.session, each.turn, each.think_s) for each in found.items] == [
        ("a", 0, 0.0),
        ("b", 0, 0.0),
        ("a", 1, 1.5),
        ("b", 1, 5.0),
    ]
    assert [len(each) for each in found.sessions()] == [2, 2]


def test_blocks_are_cut_and_answers_with_them(tmp_path: Path) -> None:
    found = _select(tmp_path, [_line(0, [1, 2, 3]) | {"input_length": 25}], block_tokens=2)
    (item,) = found.items
    assert (item.input_tokens, item.output_tokens, found.block_tokens) == (5, 4, 2)
    # 21 of 10 tokens are 4.2 of 2: the third block has nothing in it any more.
    found = _select(tmp_path, [_line(0, [1, 2, 3]) | {"input_length": 21}], block_tokens=2)
    assert (found.items[0].input_tokens, found.items[0].blocks.tolist()) == (4, [1, 2])


def test_only_the_first_of_each(tmp_path: Path) -> None:
    lines = [_line(n, [n % 3, 100 + n], f"s{n % 3}") for n in range(9)]
    assert len(_select(tmp_path, lines, requests=4).items) == 4
    assert {each.session for each in _select(tmp_path, lines, sessions=2).items} == {"s0", "s1"}
    assert max(each.turn for each in _select(tmp_path, lines, turns=2).items) == 1
    short = _select(tmp_path, lines, output_tokens=7)
    assert {each.output_tokens for each in short.items} == {7}


def test_what_is_too_long_is_left_out_and_counted(tmp_path: Path) -> None:
    lines = [_line(0, [1]), _line(1, [1, 2, 3, 4, 5])]
    found = _select(tmp_path, lines, context_tokens=40)
    assert (len(found.items), found.too_long) == (1, 1)
    with pytest.raises(ConfigError, match="2 are too long"):
        _select(tmp_path, lines, context_tokens=10)


def test_conversations_that_all_begin_at_0_begin_apart() -> None:
    found = select(
        read_trace(_trace("claude-code-60.jsonl.gz")), Cut(sessions=3, turns=1, spacing_s=2.0)
    )
    assert [each.time_s for each in found.items] == [0.0, 2.0, 4.0]


@pytest.mark.parametrize(
    "name", ["claude-code-60", "mooncake-fast25-conversation", "mooncake-fast25-synthetic"]
)
def test_tokens_share_what_the_trace_shares(name: str) -> None:
    """The most that a cache could hit is the same of tokens as of the trace's own blocks."""
    found = select(read_trace(_trace(f"{name}.jsonl.gz")), Cut(requests=120, block_tokens=8))
    prompts, cache, seen, hits, expected = Prompts(50_000), IdealCache(8), set[object](), 0, 0
    for item in found.items:
        prompt = prompts.prompt(item)
        hits += cache.could_hit(prompt)
        cache.add(prompt)
        full = item.blocks[: item.input_tokens // 8].tolist()
        most = (item.input_tokens - 1) // 8
        head: list[object] = [(item.scope, *full[: n + 1]) for n in range(len(full))]
        run = next((n for n, each in enumerate(head[:most]) if each not in seen), most)
        expected += 8 * run
        seen.update(head)
    assert hits == expected > 0
