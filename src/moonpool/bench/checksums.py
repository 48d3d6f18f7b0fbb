"""What checksums cost: the same batch with them and without."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

from moonpool.bench.batch import Batch
from moonpool.bench.bulk import VERBS, pool_for
from moonpool.bench.options import Options
from moonpool.bench.report import Limit, Row, rate_row
from moonpool.bench.sections import Step, Steps
from moonpool.bench.series import alternate
from moonpool.bench.systems import System, moonpool_system
from moonpool.bench.tally import Tally

WITHIN = 0.85
ON, OFF = "with checksums", "without checksums"


def checksum_rows(section: str, options: Options, tally: Tally) -> Iterator[Row]:
    """Yield the rows of ``checksum``; over TCP both ends always hash, so there are none of it."""
    for batch in options.batches:
        yield from _batch(section, batch, options, tally)


def _batch(section: str, batch: Batch, options: Options, tally: Tally) -> Iterator[Row]:
    with ExitStack() as stack:
        steps: Steps = []
        for name, checksums in ((ON, True), (OFF, False)):
            pool = pool_for(batch, 1)
            system = stack.enter_context(moonpool_system(pool, checksums=checksums))
            system.hold(batch)
            stack.callback(tally.add, system)
            steps += [(f"{verb}, {name}", _step(system, verb)) for verb in VERBS]
        taken = alternate(steps, options.runs)
    for verb in VERBS:
        limit = Limit(OFF, taken[f"{verb}, {OFF}"], options.bar(WITHIN))
        what = f"shared memory, {batch}: {verb}, {ON}"
        yield rate_row(section, what, taken[f"{verb}, {ON}"], batch.nbytes, limit)


def _step(system: System, verb: str) -> Step:
    return lambda: system.step(verb)
