"""A whole run of the router's benchmark: on the screen and into a file."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from moonpool.bench import report
from moonpool.bench.report import Row
from moonpool.bench.router import QUICK, SECTIONS, Bench, Options
from moonpool.bench.run import Results, show
from moonpool.bench.tally import Tally
from moonpool.errors import InvalidArgumentError

PRESETS = {"bars": Options(), "quick": QUICK}


def choose(preset: str, only: str, peer: str, rounds: int | None, streams: int | None) -> Options:
    """Return the preset with what was asked for. Raises InvalidArgumentError."""
    if preset not in PRESETS:
        raise InvalidArgumentError(f"--preset: {preset!r} is none of {', '.join(PRESETS)}")
    chosen = tuple(name.strip() for name in only.split(",") if name.strip())
    for name in chosen:
        if name not in SECTIONS:
            raise InvalidArgumentError(f"--only: {name!r} is none of {', '.join(SECTIONS)}")
    options = PRESETS[preset]
    return replace(
        options,
        sections=chosen or options.sections,
        peer=peer,
        rounds=rounds or options.rounds,
        streams=streams or options.streams,
    )


def run(options: Options, file: Path | None) -> int:
    """Measure all sections and print them; return how many requests went wrong."""
    from rich.console import Console

    console = Console(highlight=False)
    results, bench = Results.read(file), Bench(options)
    for section in options.sections:
        began, rows = time.monotonic(), list[Row]()
        for row in bench.rows(section):
            rows.append(row)
            console.print(report.line(row), style="dim", markup=False, soft_wrap=True)
        results.add(section, rows, Tally(), time.monotonic() - began, complete=True)
        results.write(file)
    show(results, options.sections, console)
    return bench.failed
