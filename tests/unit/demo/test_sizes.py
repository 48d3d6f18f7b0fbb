"""How the demonstration sizes what it starts."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path

import pytest

from moonpool.demo.engine import BLOCK_TOKENS, EngineOptions, clean_environment, command
from moonpool.demo.model import Shape
from moonpool.demo.run import RUNNING_MAX, DemoOptions, kv_tokens, pool_bytes
from moonpool.demo.workload import FULL, QUICK, Size, from_trace, synthetic
from moonpool.errors import ConfigError


def test_the_full_size_is_several_times_what_an_engine_keeps() -> None:
    workload = synthetic(FULL, seed=0)
    tokens = kv_tokens(workload, DemoOptions())
    assert tokens % BLOCK_TOKENS == 0
    assert tokens > RUNNING_MAX * workload.context_tokens
    assert workload.working_set_tokens / tokens > 2.5
    assert workload.context_tokens < Shape().context_tokens


def test_the_pool_holds_every_conversation_to_its_end() -> None:
    workload = synthetic(FULL, seed=0)
    needed = workload.working_set_tokens * Shape().kv_bytes_per_token
    assert pool_bytes(workload, DemoOptions()) > needed
    assert pool_bytes(workload, DemoOptions(pool_bytes=5)) == 5
    assert kv_tokens(workload, DemoOptions(engine_kv_tokens=64)) == 64


def test_quick_is_much_shorter() -> None:
    quick, full = synthetic(QUICK, 0), synthetic(FULL, 0)
    assert sum(s.input_tokens for s in quick.sessions) * 15 < sum(
        s.input_tokens for s in full.sessions
    )


def test_pauses_are_bounded() -> None:
    workload = synthetic(replace(FULL, gap_limit_s=0.3), seed=0)
    gaps = [turn.gap_s for session in workload.sessions for turn in session.turns]
    assert max(gaps) == 0.3


def _conversation(name: str, turns: int, tokens: int = 6_400) -> dict[str, object]:
    """A conversation that grows by so many tokens a turn, in blocks of 64."""
    requests = [
        {"t": 20.0 * i, "in": tokens * i, "out": 160, "hash_ids": list(range(tokens // 64 * i))}
        for i in range(1, turns + 1)
    ]
    return {"id": name, "block_size": 64, "requests": requests}


def _trace(path: Path, *conversations: dict[str, object]) -> Path:
    with gzip.open(path, "wt") as file:
        file.writelines(json.dumps(conversation) + "\n" for conversation in conversations)
    return path


def test_a_trace_is_cut_to_what_a_cpu_can_prefill(tmp_path: Path) -> None:
    path = _trace(
        tmp_path / "t.jsonl.gz",
        _conversation("short", 2),
        _conversation("long", 8),
        _conversation("giant", 4, tokens=64_000),
        _conversation("longer", 9),
    )
    size = Size(conversations=5, turns=4, context_tokens=2_700, gap_limit_s=1.0)
    workload = from_trace(path, size)
    assert [session.name for session in workload.sessions] == ["long", "longer"]
    assert workload.requests == 8
    (first, *_) = workload.sessions
    # 25,600 tokens in 400 blocks of 64 become 1,600 in 400 blocks of 4.
    assert [turn.input_tokens for turn in first.turns] == [400, 800, 1_200, 1_600]
    assert first.turns[1].output_tokens == 10
    assert first.turns[1].gap_s == 1.0
    assert "blocks of 64 tokens cut to 4" in workload.about


def test_a_trace_without_conversations_is_refused(tmp_path: Path) -> None:
    path = _trace(tmp_path / "t.jsonl.gz", _conversation("short", 2))
    with pytest.raises(ConfigError, match="3 turns or more"):
        from_trace(path, FULL)


def test_replicas_differ_in_one_flag() -> None:
    options = EngineOptions(Path("/model"), "name", 1 << 20)
    alone, pooled = command(options, 1, pool=False), command(options, 1, pool=True)
    assert pooled[: len(alone)] == alone
    flag, value = pooled[len(alone) :]
    assert flag == "--kv-transfer-config"
    assert json.loads(value)["kv_connector"] == "MoonpoolConnector"
    assert json.loads(value)["kv_role"] == "kv_both"


@pytest.mark.parametrize(
    ("role", "expected"),
    [("both", "kv_both"), ("prefill", "kv_producer"), ("decode", "kv_consumer")],
)
def test_a_replica_s_role_is_its_connector_s(role: str, expected: str) -> None:
    options = EngineOptions(Path("/model"), "name", 1 << 20)
    made = command(options, 1, pool=True, role=role)
    assert json.loads(made[-1])["kv_role"] == expected


def test_variables_that_would_change_the_stack_stay_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOONPOOL_MASTER", "elsewhere:1")
    monkeypatch.setenv("VLLM_PORT", "1")
    monkeypatch.setenv("MOONCAKE_CONFIG_PATH", "/nowhere")
    monkeypatch.setenv("KEPT", "1")
    found = clean_environment()
    assert "KEPT" in found
    assert not {"MOONPOOL_MASTER", "VLLM_PORT", "MOONCAKE_CONFIG_PATH"} & found.keys()
