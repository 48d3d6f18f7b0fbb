"""``moonpool bench``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from moonpool.cli import (
    bench_e2e,
    bench_eviction,
    bench_restart,
    bench_routing,
    bench_ssd,
    bench_stress,
    bench_xypd,
)
from moonpool.cli.output import NOT_WELL, reports_errors
from moonpool.cli.router import RouterCommand

group = typer.Typer(help="Measure the pool beside this machine's own limits.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group.command("e2e")(bench_e2e.e2e)
    group.command("stress")(bench_stress.stress)
    group.command("routing")(bench_routing.routing)
    group.command("xypd", cls=RouterCommand)(bench_xypd.xypd)
    group.command("ssd")(bench_ssd.ssd)
    group.command("tiers")(bench_ssd.tiers)
    group.command("restart")(bench_restart.restart)
    group.command("eviction")(bench_eviction.eviction)
    app.add_typer(group, name="bench")


@group.command("store")
@reports_errors
def store(
    preset: Annotated[
        str,
        typer.Option(
            help="bars: what is promised, beside what it is held against. matrix: sizes, batches, "
            "pieces, clients. quick: everything, small, to see that it works.",
        ),
    ] = "bars",
    only: Annotated[
        str, typer.Option(help="Sections, with commas; else all of the preset.", metavar="NAMES")
    ] = "",
    versus: Annotated[
        str, typer.Option("--vs", help="Also measure this peer: mooncake.", metavar="NAME")
    ] = "",
    mooncake_python: Annotated[
        str,
        typer.Option(help="Interpreter that has Mooncake's wheel and NumPy.", metavar="PATH"),
    ] = "",
    batch: Annotated[
        list[str] | None,
        typer.Option(help="Objects x pieces x size, such as 512x61x36k.", metavar="BATCH"),
    ] = None,
    clients: Annotated[
        list[int] | None, typer.Option(min=1, max=64, help="Client processes.")
    ] = None,
    runs: Annotated[int | None, typer.Option(min=1, help="Rounds of each measurement.")] = None,
    streams: Annotated[
        int | None, typer.Option(min=1, help="Plain sockets to compare with.")
    ] = None,
    json_file: Annotated[
        Path | None,
        typer.Option(
            "--json",
            help="Also write the figures here; sections that are there already are replaced.",
            metavar="FILE",
        ),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Skip sections that the JSON file has already.")
    ] = False,
) -> None:
    """Measure the pool beside memcpy, plain sockets and a peer in one run; verify every byte."""
    import signal

    from moonpool.bench.choices import choose
    from moonpool.bench.run import run

    options = choose(
        preset=preset,
        only=only,
        versus=versus,
        mooncake_python=mooncake_python,
        batches=batch or [],
        clients=clients or [],
        runs=runs,
        streams=streams,
    )
    # Told to end, it ends what it has started, as on Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if run(options, json_file, resume=resume):
        raise typer.Exit(NOT_WELL)


@group.command("router")
@reports_errors
def router(
    preset: Annotated[
        str,
        typer.Option(
            help="bars: 100 requests a second of growing chats of 8K tokens; new chats at once; "
            "1,000 streams at a time. quick: everything, small, to see that it works.",
        ),
    ] = "bars",
    only: Annotated[
        str, typer.Option(help="chats, start, streams; else all.", metavar="NAMES")
    ] = "",
    versus: Annotated[
        str, typer.Option("--vs", help="Also measure this vllm-router.", metavar="PROGRAM")
    ] = "",
    rounds: Annotated[int | None, typer.Option(min=1, help="Turns of each measurement.")] = None,
    streams: Annotated[int | None, typer.Option(min=1, help="Answers at a time.")] = None,
    json_file: Annotated[
        Path | None,
        typer.Option("--json", help="Also write the figures here.", metavar="FILE"),
    ] = None,
) -> None:
    """Measure what the router adds, on one core, beside none and a peer; compare every byte."""
    from moonpool.bench import router_run

    options = router_run.choose(preset, only, versus, rounds, streams)
    if router_run.run(options, json_file):
        raise typer.Exit(NOT_WELL)


@group.command("show")
@reports_errors
def show(
    file: Annotated[Path, typer.Argument(help="What a run has written with --json.")],
    markdown: Annotated[bool, typer.Option("--markdown", help="A table for a document.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The rows as JSON.")] = False,
) -> None:
    """Print the tables of an earlier run of a store benchmark."""
    from moonpool.bench.run import show_file

    show_file(file, markdown=markdown, as_json=as_json)
