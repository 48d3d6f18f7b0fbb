"""``moonpool bench xypd`` before engines that run already: its own router, its own processes."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import zipfile
from asyncio.subprocess import PIPE, Process
from contextlib import AsyncExitStack
from pathlib import Path

from tests.integration.processes import environment
from tests.integration.standin_engine import StandIn

WAIT_S = 60.0
SMALL = ("--conversations", "3", "--turns", "2", "--scale", "0.02", "--gap", "0")


async def _start(*arguments: str) -> Process:
    command = (sys.executable, "-m", "moonpool.cli", "bench", "xypd", *arguments)
    return await asyncio.create_subprocess_exec(
        *command, env=environment(), stdout=PIPE, stderr=PIPE
    )


async def _run(*arguments: str) -> tuple[int | None, str, str]:
    process = await _start(*arguments)
    async with asyncio.timeout(WAIT_S):
        out, err = await process.communicate()
    return process.returncode, out.decode(), err.decode()


def _flags(prefill: list[StandIn], decode: list[StandIn]) -> list[str]:
    given = [("--prefill", each.url) for each in prefill]
    given += [("--decode", each.url) for each in decode]
    return [text for pair in given for text in pair]


async def _fleet(stack: AsyncExitStack, count: int) -> list[StandIn]:
    return [await stack.enter_async_context(StandIn().serving()) for _ in range(count)]


async def test_splits_are_measured_in_turn(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        prefill, decode = await _fleet(stack, 2), await _fleet(stack, 2)
        json_file, book = tmp_path / "x.json", tmp_path / "x.xlsx"
        code, out, err = await _run(
            *_flags(prefill, decode), "--configs", "1P1D,2P2D", "--policy", "round_robin", *SMALL,
            "--json", str(json_file), "--xlsx", str(book),
        )  # fmt: skip
    assert code == 0, err
    assert "1P1D" in out
    found = json.loads(json_file.read_text())
    assert found["well"] is True
    assert [each["config"] for each in found["configs"]] == ["1P1D", "2P2D"]
    for each in found["configs"]:
        assert each["requests"] == len(each["requests_log"]) == 6
        assert each["errors"] == each["outputs_different"] == 0
        assert each["outputs_identical"] == 6
        assert 0 < each["ttft_s"]["p50"] <= each["ttft_s"]["p99"] <= each["e2e_s"]["p99"]
    # The second engines were used by the second split only; every prompt had its run's salt.
    salts = [{body["cache_salt"] for body in engine.bodies} for engine in decode]
    assert len(salts[0]) == 4
    assert salts[1] < salts[0]
    with zipfile.ZipFile(book) as parts:
        assert parts.testzip() is None
        assert sum(name.startswith("xl/charts/chart") for name in parts.namelist()) == 9


async def test_another_output_is_told() -> None:
    async with AsyncExitStack() as stack:
        honest = await _fleet(stack, 1)
        liar = await stack.enter_async_context(StandIn(lies=True).serving())
        flags = ["--instance", honest[0].url, "--instance", liar.url]
        code, out, _ = await _run(
            *flags, "--configs", "1,2", "--policy", "round_robin", *SMALL, "--markdown"
        )
    assert code == 1
    assert not out.splitlines()[-1].endswith("| 0 |")


async def test_what_cannot_be_is_one_line() -> None:
    async with StandIn().serving() as engine:
        flags = ["--prefill", engine.url, "--decode", engine.url, *SMALL]
        code, _, err = await _run(*flags, "--configs", "1P1D,1P2D")
        assert (code, err.splitlines()[-1]) == (
            2, "moonpool: configs: 1P2D needs 2 of --decode; allowed: what 1 can do"
        )  # fmt: skip
        code, _, err = await _run(*flags, "--configs", "1X1D")
        assert code == 2
        assert "configs: '1X1D' is not allowed" in err
    code, _, err = await _run("--instance", "http://127.0.0.1:9", "--configs", "1", *SMALL)
    assert code == 1
    assert err.splitlines()[-1].startswith("moonpool: http://127.0.0.1:9 does not say")


async def test_ctrl_c_ends_it() -> None:
    async with StandIn(slow=True).serving() as engine:
        process = await _start("--instance", engine.url, "--configs", "1", *SMALL)
        async with asyncio.timeout(WAIT_S):
            while not engine.bodies:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            process.send_signal(signal.SIGINT)
            _, err = await process.communicate()
    assert process.returncode == 130
    assert err.decode().splitlines()[-1] == "moonpool: interrupted"
