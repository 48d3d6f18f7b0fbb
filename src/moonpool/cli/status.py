"""``moonpool status``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from moonpool.cli.output import NOT_WELL, fail, print_json, print_table, reports_errors, size_text
from moonpool.cli.pool import Json, Master, connect

if TYPE_CHECKING:
    from moonpool.core.messages import DiskStatus, DrainStatus, SegmentStatus


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
        segments, disks = map(_plain, found.segments), map(_plain, found.disks)
        drains = [{name: getattr(d, name) for name in d.__struct_fields__} for d in found.drains]
        print_json({**plain, "segments": [*segments], "disks": [*disks], "drains": drains})
    else:
        typer.echo(
            f"master: epoch {found.epoch}, up {found.uptime_s:.0f} s; {found.objects} objects, "
            f"{found.puts_in_progress} puts in progress, {found.leases} leases, "
            f"{found.clients} clients"
        )
        headings = ["segment", "node", "address", "used", "of", "objects", "state"]
        print_table(headings, [_row(segment) for segment in found.segments])
        if found.disks:
            headings = [
                "disk of",
                "policy",
                "used",
                "of",
                "objects",
                "to disk",
                "from disk",
                "state",
            ]
            print_table(headings, [_disk_row(disk) for disk in found.disks])
            typer.echo(f"{found.disk_only:,} objects are on disk only")
        if found.thin:
            typer.echo(f"{found.thin:,} objects are on fewer hosts than they were put for")
        for each in found.drains:
            typer.echo(drain_text(each))
        counters = [[name, f"{value:,}"] for name, value in sorted(found.counters.items()) if value]
        if counters:
            print_table(["counter", "since the master's start"], counters)
    if not any(segment.ready and not segment.draining for segment in found.segments):
        fail("no segment takes objects: start a node (moonpool node)", NOT_WELL)


def _row(segment: SegmentStatus) -> list[str]:
    return [
        segment.info.name,
        segment.info.node,
        segment.info.address,
        size_text(segment.used_bytes),
        size_text(segment.info.data_bytes),
        f"{segment.objects:,}",
        "announcing" if not segment.ready else "draining" if segment.draining else "ready",
    ]


def drain_text(drain: DrainStatus) -> str:
    """Return how far a drain is, in a line."""
    if drain.empty:
        text = f"node {drain.node} is drained and may be stopped"
    else:
        text = f"node {drain.node} is being drained for {drain.since_s:.0f} s: "
        text += f"{drain.objects:,} objects ({size_text(drain.nbytes)}) left"
    if drain.stuck:
        text += f"; {drain.stuck:,} find no room elsewhere"
    if drain.disk_only:
        text += f"; {drain.disk_only:,} are on its disk only and stay there"
    return text


def _disk_row(disk: DiskStatus) -> list[str]:
    return [
        disk.info.node,
        disk.info.policy,
        size_text(disk.used_bytes),
        size_text(disk.info.capacity_bytes),
        f"{disk.objects:,}",
        size_text(disk.offloading_bytes),
        size_text(disk.promoting_bytes),
        "ready" if disk.ready else "announcing",
    ]


def _plain(segment: SegmentStatus | DiskStatus) -> dict[str, Any]:
    info = {name: getattr(segment.info, name) for name in segment.info.__struct_fields__}
    rest = {name: getattr(segment, name) for name in segment.__struct_fields__ if name != "info"}
    return {**info, **rest}
