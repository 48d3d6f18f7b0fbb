"""``moonpool status``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from moonpool.cli.output import NOT_WELL, fail, print_json, print_table, reports_errors, size_text
from moonpool.cli.pool import Json, Master, connect

if TYPE_CHECKING:
    from moonpool.core.messages import SegmentStatus


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("status")(status)


@reports_errors
def status(as_json: Json = False, master: Master = None) -> None:
    """Show the pool: its segments, how full they are, what was done. Exit code 1 without a
    segment that takes objects."""
    with connect(master) as store:
        found = store.status()
    if as_json:
        plain = {name: getattr(found, name) for name in found.__struct_fields__}
        print_json({**plain, "segments": [_plain(segment) for segment in found.segments]})
    else:
        typer.echo(
            f"master: epoch {found.epoch}, up {found.uptime_s:.0f} s; {found.objects} objects, "
            f"{found.puts_in_progress} puts in progress, {found.leases} leases, "
            f"{found.clients} clients"
        )
        headings = ["segment", "node", "address", "used", "of", "objects", "state"]
        print_table(headings, [_row(segment) for segment in found.segments])
        counters = [[name, f"{value:,}"] for name, value in sorted(found.counters.items()) if value]
        if counters:
            print_table(["counter", "since the master's start"], counters)
    if not any(segment.ready for segment in found.segments):
        fail("no segment takes objects: start a node (moonpool node)", NOT_WELL)


def _row(segment: SegmentStatus) -> list[str]:
    return [
        segment.info.name,
        segment.info.node,
        segment.info.address,
        size_text(segment.used_bytes),
        size_text(segment.info.data_bytes),
        f"{segment.objects:,}",
        "ready" if segment.ready else "announcing",
    ]


def _plain(segment: SegmentStatus) -> dict[str, Any]:
    info = {name: getattr(segment.info, name) for name in segment.info.__struct_fields__}
    rest = {name: getattr(segment, name) for name in segment.__struct_fields__ if name != "info"}
    return {**info, **rest}
