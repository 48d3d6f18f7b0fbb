"""Prefix lookups: the time of one, and how many several clients get done at once."""

from __future__ import annotations

import os
from collections.abc import Iterator

from moonpool.bench.options import Options
from moonpool.bench.peers import PeerError
from moonpool.bench.proc import Machine
from moonpool.bench.report import Limit, Row, missing, time_row
from moonpool.bench.sections import Step, Steps, both, median
from moonpool.bench.series import Series, alternate, speed_ratio
from moonpool.bench.systems import System
from moonpool.bench.tally import Tally

POOL_BYTES = 256 << 20
OBJECT_BYTES = 4096
"""What a table entry stands for: the blocks are as small as can be."""
NAME, ABSENT = "lookup", "absent"
FASTER = 10.0
MORE = 3.0
FULL = 0.95
ROUNDS = 3


def lookup_rows(section: str, options: Options, tally: Tally) -> Iterator[Row]:
    """Yield the rows of ``lookup``."""
    with both(
        options, tally, pool_bytes=POOL_BYTES, clients=options.many, object_size=OBJECT_BYTES
    ) as systems:
        for system in systems:
            _fill(system, options.blocks)
        yield from _one(section, systems, options)
        for system in systems:
            yield from _several(section, system, options)


def _fill(system: System, blocks: int) -> None:
    try:
        system.ask(system.clients[:1], "fill", name=NAME, count=blocks)
    except PeerError:
        if system.name == "moonpool":
            raise


def _one(section: str, systems: list[System], options: Options) -> Iterator[Row]:
    """Yield the time of a lookup of one client."""
    ours, n = systems[0], options.blocks
    steps: Steps = [(system.name, _call(system, NAME, n, options)) for system in systems]
    steps.append(("absent", _call(ours, ABSENT, n, options)))
    taken = alternate(steps, options.runs)
    what = f"prefix lookup, {n:,} blocks"
    limit = None
    if len(systems) > 1:
        against = f"batch_is_exist of {n:,} keys, {systems[1].beside}"
        limit = Limit(against, taken[systems[1].name], options.bar(FASTER))
    yield time_row(section, f"{what}, all present", taken[ours.name], limit)
    yield time_row(section, f"{what}, the first missing", taken["absent"], None)


def _call(system: System, name: str, blocks: int, options: Options) -> Step:
    present = blocks if name == NAME else 0
    # Mooncake's take many times as long: a quarter of the calls keeps the turns alike.
    calls = options.lookups if system.name == "moonpool" else max(1, options.lookups // 4)

    def step() -> float:
        answers = system.ask(
            system.clients[:1], "lookup", name=name, count=blocks, present=present, calls=calls
        )
        return median(answers)

    return step


class Throughput:
    """Lookups of some of a system's clients at once, for a while."""

    def __init__(self, system: System, clients: int, options: Options) -> None:
        self.system = system
        self.clients = system.clients[:clients]
        self.options = options
        self.busy: list[float] = []

    def step(self) -> float:
        """Return the seconds for each lookup."""
        n, before = self.options.blocks, Machine.now()
        answers = self.system.ask(
            self.clients,
            "lookup",
            name=NAME,
            count=n,
            present=n,
            seconds=self.options.lookup_s,
        )
        self.busy.append(before.busy_until(Machine.now()))
        count = sum(len(answer["taken"]) for answer in answers)
        passed = max(a["end"] for a in answers) - min(a["begin"] for a in answers)
        return float(passed / count)


def _several(section: str, system: System, options: Options) -> Iterator[Row]:
    """Yield the lookups a second of one client and of several."""
    one, many = (Throughput(system, n, options) for n in (1, options.many))
    taken = alternate([("one", one.step), ("many", many.step)], min(ROUNDS, options.runs))
    what = f"{system.name}, {options.blocks:,}-block lookups a second"
    if taken["many"].failure or taken["one"].failure:
        yield missing(section, what, taken["many"].failure or taken["one"].failure)
        return
    busy = sum(many.busy[1:]) / len(many.busy[1:])
    ratio = speed_ratio(taken["many"], taken["one"])
    asked = system.name == "moonpool" and options.bars
    yield _rate(section, f"{what}, 1 client", taken["one"])
    row = _rate(section, f"{what}, {options.many} clients", taken["many"])
    yield row.beside(
        "1 client",
        1 / taken["one"].median_s,
        ratio,
        bar=f">= {MORE:g}, or the CPU full" if asked else "",
        met=(ratio >= MORE or busy >= FULL) if asked else None,
        note=f"{busy:.0%} of {os.cpu_count()} cores busy",
    )


def _rate(section: str, what: str, series: Series) -> Row:
    low, high = 1 / max(series.seconds), 1 / min(series.seconds)
    seconds = {"a lookup": list(series.seconds)}
    return Row(section, what, 1 / series.median_s, "1/s", low, high, seconds=seconds)
