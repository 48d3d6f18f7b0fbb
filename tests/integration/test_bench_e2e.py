"""``moonpool bench e2e`` over real HTTP, against endpoints that cache as vLLM does."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from typer.testing import CliRunner

from moonpool.cli.app import app
from moonpool.workload.stats import stats_of
from moonpool.workload.traces import read_trace
from tests.integration.caching_engine import BLOCK, CachingEngine
from tests.integration.processes import environment

RUN = CliRunner()
END_S = 60.0


def _trace(tmp_path: Path, sessions: int = 3, turns: int = 4) -> Path:
    """Conversations that share two blocks of 16 and grow by two a turn."""
    path = tmp_path / "trace.jsonl"
    lines = []
    for turn in range(turns):
        for session in range(sessions):
            own = [1000 * (session + 1) + n for n in range(2 * turn + 1)]
            lines.append(
                {
                    "timestamp": 100 * turn + session,
                    "input_length": BLOCK * (2 + len(own)),
                    "output_length": 5,
                    "hash_ids": [1, 2, *own],
                    "session_id": f"c{session}",
                    "delay": 10.0,
                }
            )
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


async def _bench(*arguments: object) -> tuple[int, str, str]:
    process = await _started(*arguments)
    out, err = await asyncio.wait_for(process.communicate(), END_S)
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


async def _started(*arguments: object) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "moonpool.cli", "bench", "e2e"),
        *map(str, arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment(),
    )


@asynccontextmanager
async def _two() -> AsyncIterator[list[CachingEngine]]:
    """Two engines below one pool."""
    shared: set[int] = set()
    engines = [CachingEngine(shared), CachingEngine(shared)]
    async with engines[0].serving(), engines[1].serving():
        yield engines


def _to(engines: list[CachingEngine]) -> list[str]:
    return [part for engine in engines for part in ("--endpoint", engine.url)]


async def test_a_closed_loop_counts_what_the_engines_count(tmp_path: Path) -> None:
    file, sent, page = tmp_path / "run.json", tmp_path / "sent.jsonl", tmp_path / "run.html"
    async with _two() as engines:
        code, out, err = await _bench(
            *_to(engines), "--trace", _trace(tmp_path), "--trace-block", BLOCK,
            "--concurrency", 1, "--json", file, "--sent", sent, "--html", page,
        )  # fmt: skip
        assert code == 0, err
        prompts = [engine.prompts for engine in engines]
    found = json.loads(file.read_text())
    assert found["ended"] == "complete"
    assert found["workload"]["engine_block_tokens"] == BLOCK
    # In turn, after a request to each that counts nowhere.
    assert [len(each) for each in prompts] == [7, 7]
    hits = found["hits"]
    # By hand: of each prompt all blocks of the turn before, for the first only what is common.
    ideal = BLOCK * (sum(2 for _ in (1, 2)) + 3 * (3 + 5 + 7))
    assert hits["ideal"] == hits["cached"] == hits["hbm"] + hits["pool"] == ideal
    assert hits["queries"] == BLOCK * 3 * (3 + 5 + 7 + 9)
    assert hits["hit_rate"] == hits["ideal_rate"] == hits["answers_hit_rate"]
    assert min(hits["hbm"], hits["pool"]) > 0
    assert found["figures"]["output_tokens"] == 12 * 5
    assert found["figures"]["itl_s"]["count"] == 12 * 4
    assert all(0 <= each["ttft_s"] <= each["e2e_s"] for each in found["requests"])
    # What was sent is a trace of the same figures.
    stats = stats_of(read_trace(sent, block_tokens=BLOCK))
    assert (stats.requests, stats.sessions) == (12, 3)
    assert stats.hit_rate == pytest.approx(hits["ideal_rate"])
    _check_page(page)
    assert "TTFT" in out


async def test_sessions_stay_at_an_endpoint_when_told(tmp_path: Path) -> None:
    async with _two() as engines:
        code, _, err = await _bench(
            *_to(engines), "--trace", _trace(tmp_path, sessions=4), "--trace-block", BLOCK,
            "--balance", "session", "--concurrency", 1, "--warm-up", 0,
        )  # fmt: skip
        assert code == 0, err
        homes = [{tuple(prompt[2 * BLOCK : 3 * BLOCK]) for prompt in e.prompts} for e in engines]
    assert [len(each) for each in homes] == [2, 2]
    assert not homes[0] & homes[1]


async def test_an_open_loop_keeps_to_its_times_and_hides_no_wait(tmp_path: Path) -> None:
    """An engine that needs half a second, one place: the last of 12 waits for those before."""
    file, delay_s = tmp_path / "run.json", 0.5
    engine = CachingEngine(delay_s=delay_s)
    async with engine.serving():
        code, _, err = await _bench(
            "--endpoint", engine.url, "--trace", _trace(tmp_path), "--trace-block", BLOCK,
            "--mode", "open", "--concurrency", 1, "--warm-up", 0, "--json", file,
        )  # fmt: skip
    assert code == 0, err
    requests = json.loads(file.read_text())["requests"]
    due = [each["intended_s"] for each in requests]
    assert due == [round(0.1 * turn + 0.001 * n, 6) for turn in range(4) for n in range(3)]
    # By when it was sent it would be half a second for each of them.
    for place, each in enumerate(requests):
        assert each["ttft_s"] >= (place + 1) * delay_s - each["intended_s"] - 0.01
        assert each["sent_s"] >= place * delay_s - 0.01


async def test_failures_are_counted_by_kind_and_the_rest_goes_on(tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    kinds: dict[int, int | str] = {
        0: 503, 1: "break", 2: "garbage", 3: "error", 4: "short", 5: "silent", 6: 400
    }  # fmt: skip
    engine = CachingEngine(trouble=kinds)
    async with engine.serving():
        code, out, _ = await _bench(
            "--endpoint", engine.url, "--trace", _trace(tmp_path), "--trace-block", BLOCK,
            "--concurrency", 1, "--warm-up", 0, "--request-timeout", 10, "--json", file,
        )  # fmt: skip
    assert code == 1
    found = json.loads(file.read_text())["figures"]
    assert found["answered"] == 5
    assert found["failures"] == {
        "http 503": 1, "broken": 1, "garbage": 1, "engine": 1, "short": 1, "timeout": 1,
        "http 400": 1,
    }  # fmt: skip
    assert "1 http 503" in out


async def test_ctrl_c_shows_what_ran(tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    engine = CachingEngine(trouble={4: "silent"})
    async with engine.serving():
        process = await _started(
            "--endpoint", engine.url, "--trace", _trace(tmp_path), "--trace-block", BLOCK,
            "--concurrency", 1, "--warm-up", 0, "--json", file,
        )  # fmt: skip
        async with asyncio.timeout(END_S):
            while len(engine.prompts) < 5:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        process.send_signal(signal.SIGINT)
        out, _ = await asyncio.wait_for(process.communicate(), END_S)
    assert process.returncode == 130
    assert b"ended early: interrupted" in out
    found = json.loads(file.read_text())
    assert (found["figures"]["answered"], found["figures"]["unfinished"]) == (4, 1)
    assert found["figures"]["failures"] == {}


async def test_a_run_ends_at_its_limit(tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    engine = CachingEngine(trouble={4: "silent"})
    async with engine.serving():
        code, out, _ = await _bench(
            "--endpoint", engine.url, "--trace", _trace(tmp_path), "--trace-block", BLOCK,
            "--concurrency", 1, "--warm-up", 0, "--json", file, "--limit", 5,
        )  # fmt: skip
    assert code == 0
    assert "ended early: time limit" in out
    assert json.loads(file.read_text())["figures"]["unfinished"] == 1


async def test_two_runs_beside_one_another(tmp_path: Path) -> None:
    files = [tmp_path / "without.json", tmp_path / "with.json"]
    for file, delay_s in zip(files, (0.4, 0.0), strict=True):
        engine = CachingEngine(delay_s=delay_s)
        async with engine.serving():
            code, _, err = await _bench(
                "--endpoint", engine.url, "--trace", _trace(tmp_path), "--trace-block", BLOCK,
                "--json", file,
            )  # fmt: skip
            assert code == 0, err
    page, rows = tmp_path / "both.html", tmp_path / "both.json"
    code, out, err = await _bench("--compare", *files, "--html", page, "--json", rows)
    assert code == 0, err
    found = {row["figure"].strip(): row for row in json.loads(rows.read_text())["rows"]}
    runs: list[Any] = [json.loads(file.read_text())["figures"] for file in files]
    ratio = runs[0]["ttft_s"]["p50"] / runs[1]["ttft_s"]["p50"]
    assert found["TTFT p50"]["better"] == f"{ratio:.2f}x"
    assert "without" in out
    _check_page(page)


def _check_page(page: Path) -> None:
    """It needs nothing else, and its pictures are whole and do not share names."""
    text = page.read_text()
    assert "src=" not in text
    pictures = re.findall(r"<svg.*?</svg>", text, re.DOTALL)
    assert len(pictures) == 6
    roots = [ET.fromstring(each) for each in pictures]
    names = [each.get("id") for root in roots for each in root.iter() if each.get("id")]
    assert len(names) == len(set(names)) > 100
    used = re.findall(r'href="#([^"]*)"|url\(#([^)]*)\)', text)
    assert {one or other for one, other in used} <= set(names)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "both are needed"),
        (["--endpoint", "http://127.0.0.1:1"], "both are needed"),
        (["--endpoint", "ftp://x", "--trace", "TRACE"], "endpoint: 'ftp://x'"),
        (["--endpoint", "http://h:99999", "--trace", "TRACE"], "endpoint:"),
        (["--endpoint", "http://127.0.0.1:1", "--trace", "TRACE"], "does not say at /v1/models"),
        (["--endpoint", "h", "--trace", "TRACE", "--mode", "ajar"], "allowed: closed, open"),
        (["--endpoint", "h", "--trace", "TRACE", "--balance", "x"], "allowed: request, session"),
        (["--endpoint", "h", "--trace", "TRACE", "--vocabulary", "1"], "vocabulary: 1"),
        (["--endpoint", "h", "--trace", "TRACE", "--format", "x"], "format: 'x'"),
        (["--endpoint", "h", "--trace", "TRACE", "--json", "/nowhere/a"], "json: /nowhere/a"),
        (["--compare", "/nowhere/a", "/nowhere/b"], "compare: /nowhere/a"),
        (["--compare", "TRACE", "TRACE"], "compare:"),
    ],
)
def test_bad_input_is_one_line(tmp_path: Path, arguments: list[str], said: str) -> None:
    path = str(_trace(tmp_path))
    result = RUN.invoke(app, ["bench", "e2e", *(path if a == "TRACE" else a for a in arguments)])
    assert result.exit_code == 2
    assert said in result.stderr
    assert len(result.stderr.splitlines()) == 1
