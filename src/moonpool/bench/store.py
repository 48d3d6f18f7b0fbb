"""``moonpool bench store``: the pool beside this machine's limits and beside Mooncake, in one run.

Servers and clients are processes of their own. Each round takes the limits and the systems in
turn, so that a busy machine slows all of them. Every byte that is read is compared with what was
put.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from moonpool.bench.bulk import bulk_rows
from moonpool.bench.checksums import checksum_rows
from moonpool.bench.compat import compat_rows
from moonpool.bench.delayed import delay_rows
from moonpool.bench.footprint import memory_rows
from moonpool.bench.lookups import lookup_rows
from moonpool.bench.matrix import matrix_rows
from moonpool.bench.options import Options
from moonpool.bench.report import Row, missing
from moonpool.bench.small import small_rows
from moonpool.bench.tally import Tally
from moonpool.errors import MoonpoolError

Section = Callable[[str, Options, Tally], Iterator[Row]]

MEASURES: dict[str, Section] = {
    "shm": bulk_rows,
    "tcp": bulk_rows,
    "small": small_rows,
    "lookup": lookup_rows,
    "compat": compat_rows,
    "checksum": checksum_rows,
    "delay": delay_rows,
    "memory": memory_rows,
    "shm-matrix": matrix_rows,
    "tcp-matrix": matrix_rows,
}


def measure(section: str, options: Options, tally: Tally) -> Iterator[Row]:
    """Measure one section; yield its rows as they come. A failure is a row with the reason."""
    try:
        yield from MEASURES[section](section, options, tally)
    except MoonpoolError as error:
        yield missing(section, section, str(error))
