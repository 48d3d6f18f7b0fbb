"""``moonpool bench stress``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from moonpool.cli.output import INTERRUPTED, NOT_WELL, print_table, reports_errors

if TYPE_CHECKING:
    from moonpool.bench.stress import Plan, Share


@reports_errors
def stress(
    master: Annotated[
        str, typer.Option(help="The pool's master; else MOONPOOL_MASTER.", metavar="HOST:PORT")
    ] = "",
    role: Annotated[str, typer.Option(help="What to start here: write, read or both.")] = "both",
    writers: Annotated[
        int, typer.Option(min=1, max=1024, help="Processes that put, on all hosts together.")
    ] = 2,
    readers: Annotated[
        int, typer.Option(min=1, max=1024, help="Processes that get, on all hosts together.")
    ] = 2,
    part: Annotated[
        str, typer.Option(help="Which of the hosts with this role this is.", metavar="I/N")
    ] = "1/1",
    run: Annotated[
        str, typer.Option(help="The run's name, the same on all its hosts.", metavar="NAME")
    ] = "",
    objects: Annotated[
        int, typer.Option(min=1, max=100_000_000, help="Objects of each writer.")
    ] = 512,
    size: Annotated[str, typer.Option(help="Of an object.")] = "1MB",
    batch: Annotated[int, typer.Option(min=1, max=65_536, help="Objects in a call.")] = 16,
    ahead: Annotated[
        int,
        typer.Option(
            min=0,
            max=1_000_000,
            help="Batches that a writer may be ahead of its readers, which remove what they have "
            "read; 0: any number, and nothing is removed.",
        ),
    ] = 4,
    wait: Annotated[
        float, typer.Option(min=0.1, max=86_400, help="Longest wait for the other side, seconds.")
    ] = 60.0,
    put_timeout: Annotated[
        float, typer.Option(min=0.1, max=3600, help="Longest wait of a put for space, seconds.")
    ] = 30.0,
    transport: Annotated[
        list[str] | None, typer.Option(help="Ways to move bytes, the best first.", metavar="NAME")
    ] = None,
    limit: Annotated[
        float, typer.Option(min=0.0, max=1e7, help="Longest run, seconds; 0: until all is done.")
    ] = 0.0,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Also write all of it.", metavar="FILE")
    ] = None,
) -> None:
    """Put unique objects from some processes, get them in others, and compare every byte.

    Roles and parts may run on different hosts with the same --run and the same numbers. Exit code
    1: something was not as it was put, or not there.
    """
    from moonpool.bench.stress import BOTH, plan_of, share_of
    from moonpool.config_values import parse_size
    from moonpool.errors import ConfigError

    try:
        nbytes = parse_size(size)
    except ValueError:
        raise ConfigError(f"size: {size!r} is not allowed; allowed: such as 1MB") from None
    if not 1 <= nbytes * batch <= 1 << 36:
        raise ConfigError(f"size: {batch} objects of {size} are too much for a call")
    share = share_of(role, part)
    if (share.role != BOTH or share.hosts > 1) and not run:
        raise ConfigError("run: needed where others take part; allowed: a name that all give")
    plan = plan_of(
        run=run, writers=writers, readers=readers, objects=objects, nbytes=nbytes, batch=batch,
        ahead=ahead, wait_s=wait, limit_s=limit, put_timeout_s=put_timeout,
    )  # fmt: skip
    if json_file is not None and not json_file.absolute().parent.is_dir():
        raise ConfigError(f"json: {json_file} cannot be written; allowed: a file")
    _run(plan, share, master, transport or ["shm", "tcp"], json_file)


def _run(
    plan: Plan, share: Share, master: str, transports: list[str], json_file: Path | None
) -> None:
    from moonpool.bench.stress_run import as_json
    from moonpool.cli.interrupt import run_until_signal
    from moonpool.client.store import Store
    from moonpool.config import resolve_master

    address = resolve_master(master or None)
    # Whether there is a pool is better said once than by every process.
    Store.connect(address, name="stress", transports=transports).close()
    found = as_json(run_until_signal(_shown(plan, share, address, transports)))
    if json_file is not None:
        _write(json_file, found)
    _print(found)
    if found["ended"] == "interrupted":
        raise typer.Exit(INTERRUPTED)
    if not found["well"]:
        raise typer.Exit(NOT_WELL)


async def _shown(plan: Plan, share: Share, master: str, transports: list[str]) -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from moonpool.bench.stress_run import Run

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True)) as progress:
        run = Run(
            plan, share, master, lambda: progress.update(bar, completed=run.objects), transports
        )
        bar = progress.add_task(f"run {plan.run}", total=run.expected())
        await run.run()
    return run


def _write(path: Path, found: Any) -> None:
    import json

    from moonpool.errors import ConfigError

    try:
        path.write_text(json.dumps(found, indent=1) + "\n")
    except OSError as error:
        raise ConfigError(f"json: {path} cannot be written: {error.strerror}") from None


def _print(found: Any) -> None:
    rows = []
    for role, what in (("write", "put"), ("read", "read and compared")):
        mine = found[role]
        if not mine["processes"]:
            continue
        p50, p99 = (mine["call_s"][name] or 0.0 for name in ("p50", "p99"))
        failed = ", ".join(f"{count} {name}" for name, count in mine["failures"].items())
        rows.append(
            [
                f"{mine['processes']} that {role}",
                f"{mine['objects']:,} {what}",
                f"{mine['bytes'] / 1e9:.2f} GB",
                f"{mine['bytes_per_s_in_calls'] / 1e9:.2f} GB/s",
                f"{1000 * p50:.1f} / {1000 * p99:.1f} ms",
                failed or "none",
                f"{mine['unread']:,}",
            ]
        )
    headings = ["processes", "objects", "bytes", "in calls", "call p50 / p99", "failed", "not put"]
    print_table(headings, rows, title=f"run {found['plan']['run']}, {found['wall_s']:.1f} s")
    for role in ("write", "read"):
        for who, why in found[role]["ended"].items():
            typer.echo(f"moonpool: {who}: {why}", err=True)
        for text in found[role]["shown"]:
            typer.echo(f"moonpool: {text}", err=True)
