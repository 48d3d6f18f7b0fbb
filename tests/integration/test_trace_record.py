"""``moonpool trace record``: what passes through a real router, recorded, read and sent again."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from typer.testing import CliRunner

from moonpool.cli.app import app
from moonpool.workload.stats import Stats, stats_of
from moonpool.workload.traces import read_trace
from tests.integration.caching_engine import BLOCK, CachingEngine
from tests.integration.processes import environment
from tests.integration.test_bench_e2e import _bench, _trace

RUN = CliRunner()
END_S = 60.0


@asynccontextmanager
async def _recording(out: Path, engine: CachingEngine, *more: str) -> AsyncIterator[str]:
    """Run the command; give its URL once it knows the engine's blocks. It ends with the block."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "moonpool.cli", "trace", "record", str(out)),
        *("--instance", engine.url, "--port", "0", "--tokenizer", "instance", *more),
        stderr=asyncio.subprocess.PIPE,
        env=environment(),
    )
    assert process.stderr is not None
    try:
        async with asyncio.timeout(END_S):
            url = ""
            while not url:
                line = (await process.stderr.readline()).decode()
                assert line, "it ended"
                found = re.search(r"router listens on (\S+) ", line)
                url = f"http://{found[1]}" if found else ""
            reading = asyncio.create_task(process.stderr.read())
            while "exact" not in await _known(url):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        yield url
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), END_S) == 0, await reading
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def _known(url: str) -> str:
    """Return "exact" once a prompt of token ids is known in the engine's own blocks."""
    async with aiohttp.request("GET", f"{url}/status") as response:
        prompts = (await response.json())["prompts"]
    return "exact" if prompts["kind"] != "text" else str(prompts)


def _stats(path: Path) -> Stats:
    return stats_of(read_trace(path))


async def test_what_was_recorded_is_what_was_sent(tmp_path: Path) -> None:
    out, file = tmp_path / "recorded.jsonl", tmp_path / "run.json"
    trace = _trace(tmp_path)
    engine = CachingEngine()
    async with engine.serving():
        async with _recording(out, engine) as url:
            code, _, err = await _bench(
                "--endpoint", url, "--trace", trace, "--trace-block", BLOCK, "--json", file,
                "--warm-up", 0, "--concurrency", 1,
            )  # fmt: skip
            assert code == 0, err
        sent, recorded = stats_of(read_trace(trace, block_tokens=BLOCK)), _stats(out)
        for name in ("requests", "sessions", "input_tokens", "output_tokens", "hit_rate"):
            assert getattr(recorded, name) == getattr(sent, name), name
        # The counters are those of the engine behind the router.
        hits = json.loads(file.read_text())["hits"]
        assert hits["hit_rate"] == hits["ideal_rate"] == pytest.approx(sent.hit_rate)
        # And again: the recording itself is sent.
        code, _, err = await _bench(
            "--endpoint", engine.url, "--trace", out, "--json", file, "--seed", 7,
            "--warm-up", 0, "--concurrency", 1,
        )  # fmt: skip
        assert code == 0, err
    again = json.loads(file.read_text())
    assert again["workload"]["sessions"] == sent.sessions
    assert again["hits"]["hit_rate"] == pytest.approx(sent.hit_rate)


async def test_nothing_of_the_text_is_written(tmp_path: Path) -> None:
    out = tmp_path / "recorded.jsonl"
    engine = CachingEngine(trouble={1: 500})
    async with engine.serving(), _recording(out, engine) as url, aiohttp.ClientSession() as http:
        for prompt in (list(range(7000, 7100)), list(range(8000, 8100))):
            body = {"model": "caching", "prompt": prompt, "max_tokens": 3, "user": "bob@x.org"}
            async with http.post(f"{url}/v1/completions", json=body | {"stream": True}) as response:
                await response.read()
    (line,) = out.read_text().splitlines()
    found = json.loads(line)
    assert (found["input_length"], found["output_length"]) == (100, 3)
    assert len(found["hash_ids"]) == 7
    assert "bob" not in found["session_id"]
    assert set(found) == {
        "timestamp", "input_length", "output_length", "hash_ids", "session_id"
    }  # fmt: skip
    assert not set(found["hash_ids"]) & set(range(9000))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--key-file", "/nowhere/key"], "record_key_file: /nowhere/key"),
        (["--size", "much"], "record_size"),
        (["--policy", "luck"], "policy"),
    ],
)
def test_bad_input_is_one_line(tmp_path: Path, arguments: list[str], said: str) -> None:
    out = tmp_path / "out.jsonl"
    given = ["trace", "record", str(out), "--instance", "http://127.0.0.1:1", "--port", "0"]
    result = RUN.invoke(app, [*given, *arguments])
    assert result.exit_code == 2
    assert said in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert not out.exists()


def test_a_file_is_never_written_over(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    out.write_text("mine")
    result = RUN.invoke(app, ["trace", "record", str(out), "--instance", "http://127.0.0.1:1"])
    assert result.exit_code == 2
    assert "exists" in result.stderr
