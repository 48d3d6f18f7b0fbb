"""``moonpool demo``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from moonpool.cli.output import NOT_WELL, reports_errors
from moonpool.errors import ConfigError


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("demo")(demo)


@reports_errors
def demo(
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Also write the figures here.", metavar="FILE")
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(
            help="Replay this trace (Mooncake's or Claude Code's JSON lines, .gz too), cut to "
            "what a CPU can prefill, in place of synthesised conversations.",
            metavar="FILE",
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Much shorter: shows that it works, not what it gives.")
    ] = False,
    conversations: Annotated[int | None, typer.Option(min=1, help="How many.")] = None,
    turns: Annotated[int | None, typer.Option(min=1, help="Requests in each.")] = None,
    seed: Annotated[int, typer.Option(help="Of the synthesised conversations.")] = 0,
    mooncake: Annotated[
        str,
        typer.Option(
            help="Use the Mooncake cluster of this mooncake_master as the pool; it must have the "
            "room and nothing in it that was saved by another demo.",
            metavar="HOST:PORT",
        ),
    ] = "",
) -> None:
    """Replay agentic conversations with the pool and without it, and print the comparison."""
    from dataclasses import replace

    from rich.console import Console

    from moonpool.cli.interrupt import run_until_signal
    from moonpool.demo import engine
    from moonpool.demo.report import table
    from moonpool.demo.run import DemoOptions, run_demo
    from moonpool.demo.workload import FULL, QUICK, from_trace, synthetic

    size = QUICK if quick else FULL
    size = replace(
        size, conversations=conversations or size.conversations, turns=turns or size.turns
    )
    _check_writable(json_file)
    if mooncake:
        _check_cluster(mooncake)
    workload = from_trace(trace, size) if trace else synthetic(size, seed)
    engine.require_vllm()
    console = Console()
    report = run_until_signal(run_demo(workload, DemoOptions(mooncake=mooncake), console))
    console.print(table(report))
    _write(json_file, report.as_json())
    if not report.well:
        raise typer.Exit(NOT_WELL)


def _check_cluster(master: str) -> None:
    """Raise ConfigError or MasterUnreachableError now if there is no cluster."""
    from moonpool.client.store import Store

    Store.connect(master, engine="mooncake").close()


def _check_writable(path: Path | None) -> None:
    """Raise ConfigError now, not after minutes, for a file that could not be written."""
    if path is not None and (path.is_dir() or not path.absolute().parent.is_dir()):
        raise ConfigError(f"json: {path} cannot be written; allowed: a file in a directory there")


def _write(path: Path | None, value: dict[str, object]) -> None:
    import json

    if path is None:
        return
    try:
        path.write_text(json.dumps(value, indent=2) + "\n")
    except OSError as error:
        raise ConfigError(f"json: {path} cannot be written: {error.strerror}") from None
