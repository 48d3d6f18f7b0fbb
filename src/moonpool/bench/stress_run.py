"""The processes of the data-path check on this host, and what they found together."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from moonpool.bench.e2e.summary import spread
from moonpool.bench.stress import READ, WRITE, Plan, Share
from moonpool.bench.stress_worker import Counts, Order

FORMAT = "moonpool-stress/1"
LINE_BYTES_MAX = 64 << 20
ERROR_CHARS = 300
END_S = 30.0
STARTING_MAX = 16


class Run:
    """What there is of a run so far; ``counts`` by role and number."""

    def __init__(
        self,
        plan: Plan,
        share: Share,
        master: str,
        tell: Callable[[], None],
        transports: Sequence[str] = ("shm", "tcp"),
    ) -> None:
        self.plan, self.share = plan, share
        self.counts = {
            each: Counts(*each, ended="it did not start") for each in share.processes(plan)
        }
        self.ended = "complete"
        self.wall_s = 0.0
        self._master, self._tell = master, tell
        self.transports = tuple(transports)
        self._children: list[asyncio.subprocess.Process] = []
        self._starting = asyncio.Semaphore(STARTING_MAX)

    @property
    def objects(self) -> int:
        """How many objects have been put or read, or not, so far."""
        return sum(each.good + each.unread + sum(each.failures.values()) for each in self._all())

    def expected(self) -> int:
        """Return how many there are to put and to read."""
        plan, total = self.plan, 0
        for role, number in self.counts:
            if role == WRITE:
                total += plan.objects
            else:
                total += sum(len(plan.numbers(batch)) for _, batch in plan.read_by(number))
        return total

    def _all(self) -> Sequence[Counts]:
        return list(self.counts.values())

    async def run(self) -> None:
        """Start the processes and wait for them; a cancellation ends them in good order."""
        began = time.monotonic()
        tasks = [asyncio.create_task(self._follow(*each)) for each in self.counts]
        try:
            # Unlike gather, a cancellation leaves them be: they still have something to say.
            await asyncio.wait(tasks)
        except asyncio.CancelledError:
            self.ended = "interrupted"
            task = asyncio.current_task()
            if task is not None:
                task.uncancel()
            for child in self._children:
                with contextlib.suppress(ProcessLookupError):
                    child.terminate()
            await asyncio.wait(tasks, timeout=END_S)
        finally:
            for child in self._children:
                with contextlib.suppress(ProcessLookupError):
                    child.kill()
            self.wall_s = time.monotonic() - began
        for each in tasks:
            if each.done():
                each.result()
            else:
                each.cancel()

    async def _follow(self, role: str, number: int) -> None:
        async with self._starting:
            # A session of its own: Ctrl-C comes to it through this process, and once.
            child = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "moonpool.bench.stress_worker"),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                limit=LINE_BYTES_MAX,
                start_new_session=True,
            )
        self._children.append(child)
        order = Order(self.plan, role, number, self._master, self.transports)
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stderr is not None
        errors = asyncio.create_task(child.stderr.read())
        child.stdin.write(msgspec.json.encode(order) + b"\n")
        child.stdin.close()
        async for line in child.stdout:
            self.counts[role, number] = msgspec.json.decode(line, type=Counts)
            self._tell()
        code = await child.wait()
        counts = self.counts[role, number]
        if code or not (counts.done or counts.ended):
            said = (await errors).decode(errors="replace").strip().splitlines()
            last = said[-1][-ERROR_CHARS:] if said else "it said nothing"
            counts.ended = f"exit code {code}: {last}"


def as_json(run: Run) -> dict[str, Any]:
    """Return all that was found, as plain values."""
    return {
        "format": FORMAT,
        "ended": run.ended,
        "well": is_well(run),
        "wall_s": run.wall_s,
        "plan": msgspec.to_builtins(run.plan),
        "share": msgspec.to_builtins(run.share),
        "transports": list(run.transports),
        **{role: _role(run, role) for role in (WRITE, READ)},
    }


def is_well(run: Run) -> bool:
    """Return whether every object was put or read as it was put."""
    return run.ended == "complete" and all(
        each.done and not each.failures and not each.unread for each in run.counts.values()
    )


def _role(run: Run, role: str) -> dict[str, Any]:
    mine = [each for each in run.counts.values() if each.role == role]
    failures: Counter[str] = Counter()
    for each in mine:
        failures.update(each.failures)
    seconds = [sum(each.passed) for each in mine]
    calls = spread([passed for each in mine for passed in each.passed])
    return {
        "processes": len(mine),
        "objects": sum(each.good for each in mine),
        "bytes": sum(each.nbytes for each in mine),
        "failed": sum(failures.values()),
        "failures": dict(failures.most_common()),
        "unread": sum(each.unread for each in mine),
        "bytes_per_s_in_calls": sum(
            each.nbytes / passed for each, passed in zip(mine, seconds, strict=True) if passed
        ),
        "bytes_per_s": sum(each.nbytes for each in mine) / run.wall_s if run.wall_s else 0.0,
        "call_s": {name: getattr(calls, name) for name in ("count", "p50", "p90", "p99", "max")},
        "ended": {f"{role} {each.number}": each.ended for each in mine if each.ended},
        "shown": [text for each in mine for text in each.shown][:20],
    }
