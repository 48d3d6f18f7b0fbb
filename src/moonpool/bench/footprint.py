"""Memory for each object, memory beside the pool, and what idle processes cost."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from moonpool.bench.options import Options
from moonpool.bench.peers import PeerError
from moonpool.bench.proc import idle_share, private_bytes
from moonpool.bench.report import Row, missing
from moonpool.bench.sections import mooncake
from moonpool.bench.systems import System, moonpool_system
from moonpool.bench.tally import Tally
from moonpool.transport.layout import HEADER_BYTES, parse_header

OBJECT_BYTES_MAX = 512
NODE_SHARE_MAX = 0.01
IDLE_MAX = 0.01
SETTLE_S = 3.0


def memory_rows(section: str, options: Options, tally: Tally) -> Iterator[Row]:
    """Yield the rows of ``memory``."""
    with moonpool_system(options.pool_bytes, touch_ahead=False) as system:
        empty = _private(system)
        growth = _growth(system, options)
        yield _object_row(section, system, growth, options)
        yield _node_row(section, system, empty["node"], options)
        yield from _idle(section, system, options)
        tally.add(system)
    if options.mooncake:
        yield _mooncake_row(section, options)


def _private(system: System) -> dict[str, int]:
    return {role: sum(map(private_bytes, pids)) for role, pids in system.roles.items()}


def _growth(system: System, options: Options) -> int:
    """Fill the pool; return by how many bytes the master has grown."""
    before = _private(system)["master"]
    system.ask(
        system.clients, "fill", name="fill", count=options.objects, nbytes=options.object_bytes
    )
    time.sleep(min(SETTLE_S, options.idle_s))
    return _private(system)["master"] - before


def _object_row(section: str, system: System, growth: int, options: Options) -> Row:
    each = growth / options.objects
    asked = system.name == "moonpool" and options.bars
    return Row(
        section,
        f"{system.name}: master's memory for each object",
        each,
        "B",
        bar=f"< {OBJECT_BYTES_MAX}" if asked else "",
        met=each < OBJECT_BYTES_MAX if asked else None,
        note=f"growth of its private memory over {options.objects:,} objects",
    )


def _node_row(section: str, system: System, empty: int, options: Options) -> Row:
    data, beside = _areas(system.segments)
    private = _private(system)["node"]
    in_use = _allocated(system.segments) - options.objects * options.object_bytes
    share = (private + beside) / (data + beside)
    return Row(
        section,
        f"node's memory beside {options.pool_bytes >> 20:,} MiB of pool",
        100 * share,
        "%",
        bar=f"< {100 * NODE_SHARE_MAX:g}" if options.bars else "",
        met=share < NODE_SHARE_MAX if options.bars else None,
        note=f"its own {private / 1e6:.0f} MB ({empty / 1e6:.0f} MB before the first object), "
        f"slot tables {beside / 1e6:.0f} MB, {max(0, in_use) / 1e6:.0f} MB of them in use",
    )


def _allocated(segments: Path) -> int:
    """Return the bytes of memory behind the segments' files."""
    return sum(512 * path.stat().st_blocks for path in segments.glob("*/*.seg"))


def _areas(segments: Path) -> tuple[int, int]:
    """Return the bytes of the segments' data areas, and of all that is beside them."""
    data = beside = 0
    for path in segments.glob("*/*.seg"):
        nbytes = path.stat().st_size
        with path.open("rb") as file:
            header = parse_header(file.read(HEADER_BYTES), nbytes)
        data += header.geometry.data_bytes
        beside += nbytes - header.geometry.data_bytes
    return data, beside


def _idle(section: str, system: System, options: Options) -> Iterator[Row]:
    time.sleep(min(SETTLE_S, options.idle_s))
    shares = idle_share(system.roles, options.idle_s)
    for role, share in shares.items():
        yield Row(
            section,
            f"{role}, idle, {options.objects:,} objects",
            100 * share,
            "% of a core",
            bar=f"< {100 * IDLE_MAX:g}" if options.bars else "",
            met=share < IDLE_MAX if options.bars else None,
            note=f"over {options.idle_s:g} s",
        )


def _mooncake_row(section: str, options: Options) -> Row:
    with ExitStack() as stack:
        pool = options.objects * options.object_bytes * 5 // 4 + (64 << 20)
        system = mooncake(stack, options.mooncake, pool)
        try:
            return _object_row(section, system, _growth(system, options), options)
        except PeerError as error:
            return missing(section, "Mooncake: master's memory for each object", str(error))
