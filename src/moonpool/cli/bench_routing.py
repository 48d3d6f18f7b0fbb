"""``moonpool bench routing``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from moonpool.cli.output import reports_errors

if TYPE_CHECKING:
    from moonpool.bench.routing import Row

PIPE_COLUMNS = 220


def _numbers(text: str, key: str) -> tuple[float, ...]:
    from moonpool.errors import ConfigError

    try:
        found = tuple(float(part) for part in text.split(",") if part.strip())
    except ValueError:
        found = ()
    if not found or not all(0 < value < 1e6 for value in found):
        raise ConfigError(f"{key}: {text!r} is not allowed; allowed: positive numbers with commas")
    return found


def write(file: Path | None, text: str) -> None:
    """Write a file, if one was asked for; raise ConfigError where that cannot be."""
    from moonpool.errors import ConfigError

    if file is None:
        return
    try:
        file.write_text(text)
    except OSError as error:
        reason = error.strerror or "an error"
        raise ConfigError(f"{file} cannot be written ({reason}); allowed: a file") from None


def _print(rows: Sequence[Row], *, markdown: bool) -> None:
    from rich.console import Console

    from moonpool.bench import routing_report

    if markdown:
        typer.echo(routing_report.markdown(rows))
        return
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = PIPE_COLUMNS
    console.print(routing_report.table(rows))
    console.print(routing_report.bars_table(routing_report.bars(rows)))


@reports_errors
def routing(
    trace: Annotated[list[Path], typer.Option(help="A trace; may be repeated.", metavar="FILE")],
    policy: Annotated[
        list[str] | None, typer.Option(help="Only these; may be repeated.", metavar="NAME")
    ] = None,
    load: Annotated[
        str, typer.Option(help="Percent of what prefix carries at most, with commas.")
    ] = "70",
    level: Annotated[
        str,
        typer.Option(
            help="Instead of loads: agents, or times a trace's pace; without a pool and with it.",
            metavar="NUMBER,NUMBER",
        ),
    ] = "",
    seeds: Annotated[int, typer.Option(min=1, max=100, help="Runs of each row.")] = 3,
    engines: Annotated[int, typer.Option(min=1, max=256, help="How many engines.")] = 8,
    pool_tokens: Annotated[int, typer.Option(min=1, help="Room of the pool.")] = 16_000_000,
    variants: Annotated[
        bool, typer.Option("--variants", help="Also prefix with wrong or missing knowledge.")
    ] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Tables for a document.")] = False,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Also write all figures here.", metavar="FILE")
    ] = None,
) -> None:
    """Compare routing policies in simulation: real traces, the router's own code, modelled engines.

    Exit code 1: something that is promised of prefix is not so.
    """
    import json

    from moonpool.bench.routing import POLICIES, RoutingOptions, compare
    from moonpool.bench.routing_report import bars
    from moonpool.cli.output import NOT_WELL
    from moonpool.errors import ConfigError

    chosen = tuple(policy or POLICIES)
    if unknown := [name for name in chosen if name not in POLICIES]:
        raise ConfigError(f"policy: {unknown[0]!r} is not allowed; allowed: {', '.join(POLICIES)}")
    levels = _numbers(level, "level") if level else None
    if levels is not None and len(levels) != 2:
        raise ConfigError(f"level: {level!r} is not allowed; allowed: two numbers with a comma")
    options = RoutingOptions(
        traces=tuple(trace),
        loads=tuple(percent / 100 for percent in _numbers(load, "load")),
        seeds=seeds,
        policies=chosen,
        engines=engines,
        pool_tokens=pool_tokens,
        variants=variants,
        levels=(levels[0], levels[1]) if levels else None,
    )
    write(json_file, "")  # where that is not possible, it is known before minutes have passed
    results = compare(options, lambda text: typer.echo(text, err=True))
    write(json_file, json.dumps(results.as_json(options), indent=1) + "\n")
    _print(results.rows, markdown=markdown)
    if not all(bar.met for bar in bars(results.rows)):
        raise typer.Exit(NOT_WELL)
