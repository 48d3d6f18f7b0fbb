"""``make sim``: run seeds, several at once; say which failed, and replay one with its trace.

python -m tests.sim.world --seeds 2000 [--first 0] [--jobs 2] [--seconds 180]
python -m tests.sim.world --seeds 1 --first 17      # its trace
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import multiprocessing
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator

from tests.sim.world.simulation import Result, simulate

BATCH = 25
TASKS = 40
"""Batches after which a process is replaced: what leaks in it ends with it."""
FAILURES_MAX = 20


class _Ended(Exception):
    """No more results are waited for."""


class _Asked:
    """Whether a signal has asked for the end.

    waits: for the results of other processes, which may not come any more.
    """

    def __init__(self, *, waits: bool) -> None:
        self.yes, self._waits = False, waits
        signal.signal(signal.SIGTERM, self._ask)

    def _ask(self, _number: int, _frame: object) -> None:
        self.yes = True
        if self._waits:
            raise _Ended


def main() -> int:
    """Return the exit status: 1 if a seed failed."""
    options = _options()
    sys.unraisablehook = lambda _what: None  # of what a killed process leaves to the collector
    if options.seeds == 1:
        result = simulate(options.first, trace=True)
        print(*result.trace, sep="\n")  # noqa: T201
        print(_line(result))  # noqa: T201
        return 1 if result.error else 0
    asked = _Asked(waits=options.jobs > 1)
    started, done, failed = time.monotonic(), 0, 0
    count: Counter[str] = Counter()
    said = started
    with contextlib.suppress(_Ended):
        for result in _results(options.first, options.seeds, options.jobs, options.seconds):
            done += 1
            count += result.count
            count["virtual seconds"] += round(result.virtual_s)
            if result.error:
                failed += 1
                _say(f"FAILED {_line(result)}")
                if failed >= FAILURES_MAX:
                    break
            if time.monotonic() - said > options.report:
                said = time.monotonic()
                _say(f"{done} of {options.seeds} seeds, {done / (said - started):.1f} a second")
            if asked.yes:
                break
    took = time.monotonic() - started
    _say(f"{done} seeds from {options.first} in {took:.0f} s ({done / took:.1f} a second)")
    _say(", ".join(f"{name} {number:,}" for name, number in sorted(count.items())))
    _say(f"{failed} failed")
    if asked.yes:  # the pool would go on with what it has been given
        for child in multiprocessing.active_children():
            child.kill()
        os._exit(1 if failed else 0)
    return 1 if failed else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument(
        "--seeds", type=int, default=2000, help="how many; of one the trace is shown"
    )
    parser.add_argument("--first", type=int, default=0, help="the first")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin none after that")
    parser.add_argument("--report", type=float, default=30.0, help="seconds between lines")
    return parser.parse_args()


def _results(first: int, count: int, jobs: int, seconds: float) -> Iterator[Result]:
    """Yield the results as they come; every process runs batches."""
    until = time.monotonic() + seconds
    ranges = [
        (at, min(at + BATCH, first + count), until) for at in range(first, first + count, BATCH)
    ]
    if jobs == 1:
        _prepare()
        for each in ranges:
            yield from _batch(each)
        return
    context = multiprocessing.get_context("fork")
    with context.Pool(jobs, _begin, maxtasksperchild=TASKS) as pool:
        for batch in pool.imap(_batch, ranges):
            yield from batch


def _begin() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _prepare()


def _prepare() -> None:
    simulate(0)
    gc.collect()
    gc.freeze()


def _batch(what: tuple[int, int, float]) -> list[Result]:
    first, last, until = what
    return [simulate(seed) for seed in range(first, last) if time.monotonic() < until]


def _line(result: Result) -> str:
    return f"seed {result.seed} ({result.digest:08x}): {result.error or 'well'}\n  {result.shape}"


def _say(text: str) -> None:
    print(text, flush=True)  # noqa: T201


if __name__ == "__main__":
    sys.exit(main())
