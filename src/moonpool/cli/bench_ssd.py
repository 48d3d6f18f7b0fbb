"""``moonpool bench ssd`` and ``moonpool bench tiers``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from moonpool.cli.output import print_json, print_table, reports_errors

if TYPE_CHECKING:
    from moonpool.bench.ssd import Figures

Json = Annotated[bool, typer.Option("--json", help="The figures as JSON.")]


@reports_errors
def ssd(
    directory: Annotated[
        Path, typer.Option("--dir", help="On the disk to measure; files there are removed again.")
    ] = Path(),
    sizes: Annotated[
        str, typer.Option(help="Sizes of objects, with commas.")
    ] = "64KB,256KB,2MB,16MB",
    total: Annotated[str, typer.Option(help="Bytes moved by each measurement.")] = "1GB",
    rounds: Annotated[int, typer.Option(min=1, max=100, help="Rounds; medians count.")] = 5,
    as_json: Json = False,
) -> None:
    """Measure a node's disk beside what the machine's disk can do (fio, where it is installed), in
    turns: objects written and read, every byte verified."""
    from dataclasses import asdict

    from moonpool.bench.ssd import run
    from moonpool.config_values import parse_size

    found = _sizes(sizes)
    report = run(
        directory, found, parse_size(total), rounds, lambda text: typer.echo(text, err=True)
    )
    if as_json:
        print_json(asdict(report))
        return
    typer.echo(f"limit: {report.limit}; ours: {report.volume}; {total} each, {rounds} rounds")
    headings = ["objects of", "write, GB/s", "limit", "share", "read, GB/s", "limit", "share"]
    print_table(headings, [_row(each) for each in report.sizes])


@reports_errors
def tiers(
    traces: Annotated[list[Path], typer.Argument(help="Request traces.", metavar="TRACE...")],
    memory: Annotated[
        float, typer.Option(min=0.001, max=10, help="Memory, as a share of the working set.")
    ] = 0.125,
    disks: Annotated[
        str, typer.Option(help="Disks to compare, as shares of the working set, with commas.")
    ] = "0,0.25,0.5,1.25",
    policy: Annotated[str, typer.Option(help="The disks' policy.")] = "on-evict",
    as_json: Json = False,
) -> None:
    """Replay traces through the real master with and without disks, under a virtual clock; show
    what was hit."""
    from dataclasses import asdict

    from moonpool.bench.tiers import replay, steps_of, working_set
    from moonpool.core.messages import DISK_POLICIES
    from moonpool.errors import ConfigError

    if policy not in DISK_POLICIES:
        allowed = ", ".join(DISK_POLICIES)
        raise ConfigError(f"policy: {policy!r} is not allowed; allowed: {allowed}")
    shares = _shares(disks)
    points = []
    for path in traces:
        steps = steps_of(path)
        objects = working_set(steps)
        points += [replay(path.name, steps, objects, memory, disk, policy) for disk in shares]
    if as_json:
        print_json([{**asdict(each), "hit_rate": each.hit_rate} for each in points])
        return
    rows = [
        [
            each.trace,
            f"{each.memory_share:.1%}",
            f"{each.disk_share:.0%}" if each.disk_share else "none",
            f"{each.hit_rate:.2%}",
            f"{each.from_disk_tokens / each.input_tokens:.2%}",
        ]
        for each in points
    ]
    print_table(["trace", "memory", "disk", "hit rate", "of it from disk"], rows)


def _row(each: Figures) -> list[Any]:
    from statistics import median

    from moonpool.cli.output import size_text

    return [
        size_text(each.size),
        f"{median(each.write) / 1e9:.2f}",
        f"{median(each.limit_write) / 1e9:.2f}",
        f"{each.ratio('write'):.0%}",
        f"{median(each.read) / 1e9:.2f}",
        f"{median(each.limit_read) / 1e9:.2f}",
        f"{each.ratio('read'):.0%}",
    ]


def _sizes(text: str) -> list[int]:
    from moonpool.config_values import parse_size
    from moonpool.errors import ConfigError

    try:
        return [parse_size(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"sizes: {text!r} is not allowed; allowed: such as 256KB,2MB") from None


def _shares(text: str) -> list[float]:
    from moonpool.errors import ConfigError

    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        found = []
    if not found or not all(0 <= share <= 100 for share in found):
        raise ConfigError(f"disks: {text!r} is not allowed; allowed: shares such as 0,0.5,1.25")
    return found
