"""All sizes, counts, pieces and numbers of clients: put, get, exists and prefix lookup of each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing

from moonpool.bench.batch import Batch, random_bytes
from moonpool.bench.bulk import TITLES, limit_steps
from moonpool.bench.options import Options
from moonpool.bench.peers import PeerError
from moonpool.bench.report import Limit, Row, rate_row, time_row
from moonpool.bench.sections import Step, Steps, median, mooncake
from moonpool.bench.series import Series, alternate
from moonpool.bench.systems import TUNED_FROM_PIECES, System, moonpool_system
from moonpool.bench.tally import Tally

PIECE_BYTES_MIN = 1024
SPARE_BYTES = 128 << 20
QUICK_BYTES = 16 << 20
QUICK_RUNS = 3
"""Batches up to ``QUICK_BYTES`` take so many times the rounds of others."""
LOOKUPS = 5
VERBS = ("put", "get", "exists", "lookup")


def cells(options: Options) -> list[Batch]:
    """Return the batches that are not larger than ``matrix_bytes``."""
    return [
        Batch(count, pieces, size // pieces)
        for size in options.sizes
        for pieces in options.pieces
        for count in options.counts
        if count * size <= options.matrix_bytes
        and (pieces == 1 or size // pieces >= PIECE_BYTES_MIN)
    ]


def matrix_rows(section: str, options: Options, tally: Tally) -> Iterator[Row]:
    """Yield the rows of ``shm-matrix`` or ``tcp-matrix``."""
    transport = section.partition("-")[0]
    for clients in options.clients:
        pool = options.matrix_bytes * clients * 5 // 4 + SPARE_BYTES
        transports = ("tcp",) if transport == "tcp" else ("shm", "tcp")
        with (
            moonpool_system(pool, transports=transports, clients=clients) as ours,
            closing(Others(pool, clients, options)) as others,
        ):
            for batch in cells(options):
                systems = [ours, *others.for_cell(batch)]
                yield from _cell(section, batch, systems, options)
                for system in systems:
                    tally.add(system)


class Others:
    """Mooncake, started anew when the cell needs other settings, and after a failure: from then on
    its client answers nothing but -800."""

    def __init__(self, pool: int, clients: int, options: Options) -> None:
        self._pool, self._clients, self._python = pool, clients, options.mooncake
        self._stack = ExitStack()
        self._tuned = False
        self._system: System | None = None

    def for_cell(self, batch: Batch) -> list[System]:
        """Return what to compare with: nothing where that is not asked for."""
        if not self._python:
            return []
        tuned = batch.objects * batch.pieces > TUNED_FROM_PIECES
        system = self._system
        if system is None or system.failure or tuned != self._tuned:
            self.close()
            self._tuned = tuned
            self._system = system = mooncake(
                self._stack, self._python, self._pool, clients=self._clients, tuned=tuned
            )
        return [system]

    def close(self) -> None:
        """End it."""
        self._stack.close()


def _cell(section: str, batch: Batch, systems: list[System], options: Options) -> Iterator[Row]:
    transport, clients = section.partition("-")[0], len(systems[0].clients)
    with ExitStack() as stack:
        source = random_bytes(batch.nbytes, seed=11)
        steps, limit = limit_steps(transport, stack, source, clients, options)
        for system in systems:
            _hold(system, batch)
            steps += _steps(system, batch.objects)
        runs = options.runs * (QUICK_RUNS if batch.nbytes <= QUICK_BYTES else 1)
        taken = alternate(steps, runs)
    title = f"{TITLES[transport]}, {batch}, {clients} client" + ("s" if clients > 1 else "")
    for verb in VERBS:
        limits: list[Limit | None] = [Limit(limit, taken[limit])] if verb in ("put", "get") else []
        limits += [Limit(s.beside, taken[f"{s.name} {verb}"]) for s in systems[1:]]
        for held in limits or [None]:
            yield _row(section, f"{title}: {verb}", verb, taken, batch.nbytes * clients, held)


def _row(
    section: str,
    what: str,
    verb: str,
    taken: dict[str, Series],
    nbytes: int,
    limit: Limit | None,
) -> Row:
    series = taken[f"moonpool {verb}"]
    if verb in ("put", "get"):
        return rate_row(section, what, series, nbytes, limit)
    return time_row(section, what, series, limit)


def _hold(system: System, batch: Batch) -> None:
    try:
        system.hold(batch)
    except PeerError as error:
        if system.name == "moonpool":
            raise
        system.failure = system.failure or str(error)


def _steps(system: System, blocks: int) -> Steps:
    steps: Steps = [(f"{system.name} {verb}", _step(system, verb)) for verb in VERBS[:-1]]

    def look_up() -> float:
        return median(
            system.ask(
                system.clients, "lookup", name="", count=blocks, present=blocks, calls=LOOKUPS
            )
        )

    return [*steps, (f"{system.name} lookup", look_up)]


def _step(system: System, verb: str) -> Step:
    return lambda: system.step(verb)
