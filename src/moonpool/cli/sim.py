"""``moonpool sim``: a cluster before it is bought."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from moonpool.cli import sim_real, sim_run
from moonpool.cli.output import print_table, reports_errors

app = typer.Typer(
    help="Simulate a cluster: engines, hosts, network, pool and master.", no_args_is_help=True
)


def register(parent: typer.Typer) -> None:
    """Add the command."""
    sim_run.register(app)
    sim_real.register(app)
    parent.add_typer(app, name="sim")


JsonFile = Annotated[Path | None, typer.Option("--json", help="Write all figures.", metavar="FILE")]
Figure = Annotated[Path | None, typer.Option(help="Draw it to this PNG.", metavar="FILE.png")]


def say(text: str) -> None:
    """Tell of progress."""
    typer.echo(text, err=True)


def write_bytes(file: Path, content: bytes) -> None:
    """Write a file; raise ConfigError where that cannot be."""
    from moonpool.errors import ConfigError

    try:
        file.write_bytes(content)
    except OSError as error:
        reason = error.strerror or "an error"
        raise ConfigError(f"{file} cannot be written ({reason}); allowed: a file") from None


def numbers(text: str, key: str, most: int = 100_000) -> tuple[int, ...]:
    """Return whole numbers with commas between them; raise ConfigError."""
    from moonpool.errors import ConfigError

    try:
        found = tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError:
        found = ()
    if not found or not all(0 < value <= most for value in found):
        allowed = f"1 to {most}, with commas"
        raise ConfigError(f"{key}: {text!r} is not allowed; allowed: {allowed}")
    return found


@app.command("seed-figures")
@reports_errors
def seed_figures(
    sessions: Annotated[
        str, typer.Option(help="Also so many conversations at work.", metavar="N,N")
    ] = "30,40,50,75,100",
    gpus: Annotated[
        str, typer.Option(help="GPUs of the scaling run, multiples of 12.", metavar="N,N")
    ] = "12,24,36,48,60",
    seed: Annotated[int, typer.Option(min=0, help="Of the made traces.")] = 1,
    figure: Figure = None,
    json_file: JsonFile = None,
) -> None:
    """Simulate the published runs of vLLM with a pool (Kimi-K2.5 on GB200s), beside the figures.

    Exit code 1: a figure is further off than 25 % (ratios) or 2 points (hit rates).
    """
    import json

    from moonpool.cli.output import NOT_WELL
    from moonpool.errors import ConfigError
    from moonpool.sim.fleet import seed as runs
    from moonpool.sim.fleet import seed_report as report

    counts = numbers(gpus, "gpus")
    if any(count % runs.GROUP_GPUS for count in counts):
        raise ConfigError(f"gpus: {gpus!r} is not allowed; allowed: multiples of 12, with commas")
    for file in (figure, json_file):
        if file is not None:
            write_bytes(file, b"")
    found = runs.figures(numbers(sessions, "sessions"), counts, seed, say)
    if figure is not None:
        write_bytes(figure, report.figure(found))
    rows = report.comparison(found)
    if json_file is not None:
        write_bytes(json_file, json.dumps(found.plain(), indent=1).encode() + b"\n")
    heading = f"{runs.GROUP_GPUS} GPUs, 1P1D, Codex, {runs.SESSIONS} sessions"
    print_table([heading, "published", "simulated", "off", "within"], rows)
    print_table(report.SESSION_HEADINGS, report.by_sessions(found), title="without / with")
    print_table(report.SCALING_HEADINGS, report.scaling_rows(found), title="round robin")
    typer.echo("Calibrated with the baseline's published hit rate; nothing else is fitted:")
    for name, text in {**runs.CALIBRATED, **runs.ASSUMED}.items():
        typer.echo(f"  {name}: {text}")
    if any(row[-1] == "no" for row in rows):
        raise typer.Exit(NOT_WELL)
