"""Single objects of 4 KiB, one after the other: with cores that are awake, and with cores that
have gone to sleep before each call."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from moonpool.bench.options import Options
from moonpool.bench.report import Limit, Row, time_row
from moonpool.bench.sections import Steps, both, median
from moonpool.bench.series import alternate
from moonpool.bench.systems import System
from moonpool.bench.tally import Tally

NBYTES = 4096
POOL_BYTES = 256 << 20
FASTER = 1.0
VERBS = ("put", "get")


def small_rows(section: str, options: Options, tally: Tally) -> Iterator[Row]:
    """Yield the rows of ``small``."""
    with both(options, tally, pool_bytes=POOL_BYTES) as systems:
        for name, calls, pause_s in (
            ("cores awake", options.calls, 0.0),
            (f"{options.pause_s * 1e3:g} ms pause before each", options.pauses, options.pause_s),
        ):
            steps: Steps = []
            for system in systems:
                steps += _steps(system, calls, pause_s, first=10**6 if pause_s else 0)
            taken = alternate(steps, options.runs)
            for verb in VERBS:
                limit = None
                if len(systems) > 1:
                    theirs = taken[f"{systems[1].name} {verb}"]
                    limit = Limit(systems[1].beside, theirs, options.bar(FASTER))
                what = f"{verb} 4 KiB, other process's segment, {name}"
                yield time_row(section, what, taken[f"{systems[0].name} {verb}"], limit)


def _steps(system: System, calls: int, pause_s: float, first: int) -> Steps:
    """Return the steps of both verbs; each round has new objects."""
    rounds = dict.fromkeys(VERBS, 0)

    def step(verb: str) -> Callable[[], float]:
        def run() -> float:
            at = first + rounds[verb] * calls
            rounds[verb] += 1
            answers = system.ask(
                system.clients,
                "small",
                verb=verb,
                nbytes=NBYTES,
                first=at,
                calls=calls,
                pause_s=pause_s,
            )
            return median(answers)

        return run

    return [(f"{system.name} {verb}", step(verb)) for verb in VERBS]
