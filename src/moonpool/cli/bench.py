"""``moonpool bench``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from moonpool.cli.output import reports_errors

group = typer.Typer(help="Measure the pool beside this machine's own limits.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.add_typer(group, name="bench")


@group.command("store")
@reports_errors
def store(
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Also write the figures here.", metavar="FILE")
    ] = None,
    runs: Annotated[int, typer.Option(min=1, help="Rounds of each bulk measurement.")] = 5,
    calls: Annotated[int, typer.Option(min=10, help="Calls of each latency measurement.")] = 500,
    objects: Annotated[int, typer.Option(min=1, help="Objects in a batch.")] = 512,
    object_kib: Annotated[int, typer.Option(min=4, help="Size of an object, KiB.")] = 2048,
    pieces: Annotated[int, typer.Option(min=1, help="Pieces an object is gathered from.")] = 61,
    streams: Annotated[int, typer.Option(min=1, help="Plain sockets to compare with.")] = 4,
) -> None:
    """Measure the data path and the lookups beside memcpy and plain sockets; verify every byte."""
    import json

    from rich.console import Console

    from moonpool.bench import report
    from moonpool.bench.store import Options, Workload, measure
    from moonpool.transport import copy

    console = Console()
    options = Options(Workload(objects, object_kib * 1024, pieces), runs, calls, streams=streams)
    copies = copy.prepare()
    rows = []
    for row in measure(options):
        rows.append(row)
        console.print(f"{row.what}: {row.value:.2f} {row.unit}", style="dim", highlight=False)
    console.print(report.table(rows))
    console.print(f"copies: {copies}", highlight=False)
    if json_file is not None:
        json_file.write_text(json.dumps(report.as_json(rows, copies), indent=2) + "\n")
