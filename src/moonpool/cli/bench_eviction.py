"""``moonpool bench eviction``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from moonpool.cli.output import print_table, reports_errors

if TYPE_CHECKING:
    from moonpool.bench.eviction import Report

DEFAULT_SIZES = "0.01,0.03,0.0625,0.125,0.25,0.5"


@reports_errors
def eviction(
    trace: Annotated[list[Path], typer.Option("--trace", help="A request trace; may be repeated.")],
    policies: Annotated[
        str,
        typer.Option(help="Policies, sessions, optimum, with commas; else all.", metavar="NAMES"),
    ] = "",
    sizes: Annotated[
        str, typer.Option(help="Pools, as shares of each trace's objects, with commas.")
    ] = DEFAULT_SIZES,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Also write the figures here.", metavar="FILE")
    ] = None,
    png_file: Annotated[
        Path | None,
        typer.Option("--png", help="Also draw them here (needs matplotlib).", metavar="FILE"),
    ] = None,
) -> None:
    """Serve traces under each eviction policy in pools of several sizes; show what is hit, beside
    the best that is possible."""
    from moonpool.bench.eviction import run
    from moonpool.bench.eviction_figure import draw

    report = run(
        trace, _policies(policies), _shares(sizes), lambda text: typer.echo(text, err=True)
    )
    for facts in report.traces:
        _print(report, facts.trace)
    if json_file is not None:
        _write(json_file, report)
    if png_file is not None:
        draw(report, png_file)


def _print(report: Report, trace: str) -> None:
    facts = next(each for each in report.traces if each.trace == trace)
    mine = [each for each in report.points if each.trace == trace]
    shares = list(dict.fromkeys(each.share for each in mine))
    rows = [
        [policy, *(f"{each.hit_rate:.1%}" for each in mine if each.policy == policy)]
        for policy in dict.fromkeys(each.policy for each in mine)
    ]
    title = (
        f"{trace}: {facts.requests:,} requests, {facts.objects:,} objects of {facts.tokens_each} "
        f"tokens; {facts.ceiling:.1%} are hit where nothing is evicted"
    )
    print_table(["policy", *(f"{share:.3%}" for share in shares)], rows, title=title)


def _write(path: Path, report: Report) -> None:
    import json

    from moonpool.errors import ConfigError

    try:
        path.write_text(json.dumps(report.plain(), indent=1) + "\n")
    except OSError as error:
        raise ConfigError(f"json: {path} cannot be written: {error.strerror}") from None


def _policies(text: str) -> list[str]:
    from moonpool.bench.eviction import NAMES
    from moonpool.errors import ConfigError

    chosen = [part.strip() for part in text.split(",")] if text else list(NAMES)
    if not set(chosen) <= set(NAMES) or len(set(chosen)) < len(chosen):
        raise ConfigError(f"policies: {text!r} is not allowed; allowed: {', '.join(NAMES)}")
    return chosen


def _shares(text: str) -> list[float]:
    from moonpool.errors import ConfigError

    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        found = []
    if not found or not all(0 < share <= 100 for share in found):
        raise ConfigError(f"sizes: {text!r} is not allowed; allowed: shares such as 0.03,0.125")
    return found
