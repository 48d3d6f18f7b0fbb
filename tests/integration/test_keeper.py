"""Processes of the stack that end by themselves are started again."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from moonpool.demo import endurance
from moonpool.demo.keeper import Keeper, Kept
from moonpool.demo.process import Child, StartError, Supervisor

WAIT_S = 30.0
SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]
FAIL = [sys.executable, "-c", "print('no'); exit(3)"]


async def _nothing() -> None:
    pass


async def _until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def test_a_killed_process_is_started_again_and_said_to_be_back(tmp_path: Path) -> None:
    said: list[str] = []
    lost: list[str] = []
    async with Supervisor(tmp_path) as supervisor:
        child = supervisor.start("sleeper", SLEEP)
        keeper = Keeper(said.append)
        keeper.keep(Kept(child, lambda: lost.append("lost"), _nothing, essential=True))
        running = asyncio.create_task(keeper.run())
        for round_ in (1, 2):
            before = child.pid
            os.kill(before, signal.SIGKILL)
            await _until(lambda: len(lost) == said.count("sleeper is back") == round_)  # noqa: B023
            assert child.pid != before
            assert child.is_alive()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    assert not child.is_alive()


@pytest.mark.parametrize("essential", [True, False])
async def test_one_that_cannot_run_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, essential: bool
) -> None:
    monkeypatch.setattr(endurance, "WAIT_FIRST_S", 0.01)
    said: list[str] = []
    async with Supervisor(tmp_path) as supervisor:
        keeper = Keeper(said.append)

        async def serves(child: Child) -> None:
            await asyncio.sleep(0.2)
            if not child.is_alive():
                raise child.ended_badly()

        bad, good = supervisor.start("bad", FAIL), supervisor.start("good", SLEEP)
        keeper.keep(Kept(bad, lambda: None, lambda: serves(bad), essential=essential))
        keeper.keep(Kept(good, lambda: None, lambda: serves(good), essential=False))
        running = asyncio.create_task(keeper.run())
        if essential:
            with pytest.raises(StartError, match=r"(?s)bad ended with 3; .*no"):
                await asyncio.wait_for(running, WAIT_S)
        else:
            await _until(lambda: bool(said) and "lost; the others go on" in said[-1])
            assert not running.done()
            os.kill(good.pid, signal.SIGKILL)
            await _until(lambda: said[-1] == "good is back")
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
