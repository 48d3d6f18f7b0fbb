"""The Mooncake API: one program under ``moonpool compat env`` and with Mooncake's wheel.

A process asks, another lends the segment, both on this host.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

from moonpool.bench.batch import Batch
from moonpool.bench.bulk import pool_for
from moonpool.bench.options import Options
from moonpool.bench.peers import PeerError
from moonpool.bench.report import Limit, Row, rate_row, time_row
from moonpool.bench.sections import Step, Steps, median, mooncake
from moonpool.bench.series import Series, alternate
from moonpool.bench.systems import TUNED_FROM_PIECES, System, compat_system
from moonpool.bench.tally import Tally

SECTION = "compat"
SMALL_BYTES = 4096
SMALL_POOL_BYTES = 256 << 20
NAME, ABSENT = "lookup", "absent"
NO_SLOWER, FASTER = 1.0, 3.0
FAILING_ROUNDS = 1
"""Of what ends in an error after a minute."""


@dataclass(frozen=True, slots=True)
class Call:
    """A call of the API: what a client does for it, and where its objects are numbered from."""

    name: str
    verb: str
    values: bool
    first: int


SMALL = (
    Call("put", "put", True, 0),
    Call("get", "get", True, 0),
    Call("put_from", "put", False, 10**6),
    Call("get_into", "get", False, 10**6),
)
SINGLE = {"put": "put_from", "get": "get_into"}
PIECES = {"put": "batch_put_from_multi_buffers", "get": "batch_get_into_multi_buffers"}


def compat_rows(_section: str, options: Options, tally: Tally) -> Iterator[Row]:
    """Yield the rows of ``compat``."""
    with ExitStack() as stack:
        running = _started(stack, SMALL_POOL_BYTES, options, tally)
        yield from _small(running, options)
        yield from _lookups(running, options)
    for batch in options.single_batches:
        with ExitStack() as stack:
            running = _started(stack, pool_for(batch, 1), options, tally)
            running.hold(batch, single=True)
            yield from _bulk(running, batch, SINGLE, FASTER, options)
    yield from _pieces(options, tally)


@dataclass(slots=True)
class Running:
    """Moonpool and, where it is asked for, Mooncake."""

    systems: list[System]
    rounds: dict[tuple[str, str], int] = field(default_factory=dict)

    def hold(self, batch: Batch, *, single: bool) -> None:
        """Give the clients a batch, whose objects are moved one by one or all at once."""
        for system in self.systems:
            if not system.failure:
                try:
                    system.ask(system.clients, "manner", single=single)
                    system.hold(batch)
                except PeerError as error:
                    system.failure = str(error)

    def limit(self, taken: dict[str, Series], what: str, at_least: float | None) -> Limit | None:
        """Return what a series of moonpool's is held against."""
        if len(self.systems) < 2:
            return None
        name = self.systems[1].beside
        return Limit(name, taken[f"{self.systems[1].name} {what}"], at_least)


def _started(
    stack: ExitStack, pool: int, options: Options, tally: Tally, *, tuned: bool = False
) -> Running:
    systems = [stack.enter_context(compat_system(pool))]
    if options.mooncake:
        systems.append(mooncake(stack, options.mooncake, pool, tuned=tuned))
    for system in systems:
        stack.callback(tally.add, system)
    return Running(systems)


def _small(running: Running, options: Options) -> Iterator[Row]:
    """Yield single objects of 4 KiB: values and memory of the caller."""
    steps: Steps = [
        (f"{system.name} {call.name}", _small_step(running, system, call, options.calls))
        for call in SMALL
        for system in running.systems
    ]
    taken = alternate(steps, options.runs)
    for call in SMALL:
        limit = running.limit(taken, call.name, options.bar(NO_SLOWER))
        yield time_row(SECTION, f"{call.name} 4 KiB", taken[f"moonpool {call.name}"], limit)


def _small_step(running: Running, system: System, call: Call, calls: int) -> Step:
    def step() -> float:
        at = (system.name, call.name)
        turn = running.rounds[at] = running.rounds.get(at, -1) + 1
        system.ask(system.clients, "manner", values=call.values)
        first = call.first + turn * calls
        answers = system.ask(
            system.clients, "small", verb=call.verb, nbytes=SMALL_BYTES, first=first, calls=calls
        )
        return median(answers)

    return step


def _lookups(running: Running, options: Options) -> Iterator[Row]:
    """Yield ``batch_is_exist`` of keys that are there, and of keys that are not."""
    n = options.blocks
    steps: Steps = []
    for system in running.systems:
        try:
            system.ask(system.clients, "fill", name=NAME, count=n)
        except PeerError as error:
            system.failure = str(error)
        steps += [
            (f"{system.name} {name}", _lookup_step(system, name, n, options))
            for name in (NAME, ABSENT)
        ]
    taken = alternate(steps, options.runs)
    for name, which in ((NAME, "all there"), (ABSENT, "none there")):
        limit = running.limit(taken, name, options.bar(NO_SLOWER))
        what = f"batch_is_exist of {n:,} keys, {which}"
        yield time_row(SECTION, what, taken[f"moonpool {name}"], limit)


def _lookup_step(system: System, name: str, count: int, options: Options) -> Step:
    present, calls = (count if name == NAME else 0), max(1, options.lookups // 4)

    def step() -> float:
        answers = system.ask(
            system.clients, "lookup", name=name, count=count, present=present, calls=calls
        )
        return median(answers)

    return step


def _bulk(
    running: Running, batch: Batch, calls: dict[str, str], at_least: float | None, options: Options
) -> Iterator[Row]:
    steps: Steps = [
        (f"{system.name} {verb}", _verb_step(system, verb))
        for system in running.systems
        for verb in calls
    ]
    taken = alternate(steps, options.runs)
    for verb, call in calls.items():
        limit = running.limit(taken, verb, None if at_least is None else options.bar(at_least))
        what, series = f"{call}, {batch}", taken[f"moonpool {verb}"]
        yield rate_row(SECTION, what, series, batch.nbytes, limit)


def _verb_step(system: System, verb: str) -> Step:
    return lambda: system.step(verb)


def _pieces(options: Options, tally: Tally) -> Iterator[Row]:
    """Yield a batch of many pieces. Mooncake fails it with its defaults, after a minute."""
    batch = options.piece_batch
    many = batch.objects * batch.pieces > TUNED_FROM_PIECES
    ways: Sequence[bool] = (True, False) if many and options.mooncake else (False,)
    for tuned in ways:
        with ExitStack() as stack:
            running = _started(stack, pool_for(batch, 1), options, tally, tuned=tuned)
            running.hold(batch, single=False)
            chosen = options if tuned or not many else replace(options, runs=FAILING_ROUNDS)
            yield from _bulk(running, batch, PIECES, None, chosen)
