"""``moonpool trace``: what a trace is like, and traces made from it or from nothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from moonpool.cli.output import print_json, print_table, reports_errors

if TYPE_CHECKING:
    from moonpool.workload.formats.chat import Encoder
    from moonpool.workload.spread import Spread
    from moonpool.workload.stats import Stats
    from moonpool.workload.traces import Group, Problems
    from moonpool.workload.write import Renamer

group = typer.Typer(help="Request traces: figures of them, and new ones.", no_args_is_help=True)

Source = Annotated[Path, typer.Argument(help="A trace; .gz is read too.", metavar="TRACE")]
Target = Annotated[Path, typer.Argument(help="File to write, as Mooncake's JSON lines.")]
Form = Annotated[str, typer.Option("--format", help="Its format; found out where it is not given.")]
Block = Annotated[int, typer.Option(min=0, max=1 << 20, help="Tokens of the trace's blocks.")]
Strict = Annotated[bool, typer.Option("--strict", help="End at the first bad line.")]
Tokenizer = Annotated[
    Path | None, typer.Option(help="Directory of the tokenizer that chats are hashed with.")
]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.add_typer(group, name="trace")


@group.command("stats")
@reports_errors
def stats(
    trace: Source,
    form: Form = "",
    block_tokens: Block = 0,
    strict: Strict = False,
    tokenizer: Tokenizer = None,
    figure: Annotated[
        Path | None, typer.Option(help="Also draw it here; .png or .svg.", metavar="FILE")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="All figures as JSON.")] = False,
) -> None:
    """Count requests, conversations and tokens, and what could have been hit."""
    from moonpool.workload.figures import draw
    from moonpool.workload.stats import stats_of
    from moonpool.workload.traces import TraceError

    problems = _problems(strict)
    found = stats_of(_read(trace, problems, form, block_tokens, tokenizer))
    _tell(problems)
    if not found.requests:
        raise TraceError(f"{trace}: no request in it can be read")
    if figure is not None:
        draw(found, trace.name, figure)
    if as_json:
        extra = {"hit_rate": found.hit_rate, "input_to_output": found.input_to_output}
        bad = {"bad_lines": problems.count}
        print_json({"trace": trace.name, **dataclasses.asdict(found), **extra, **bad})
        return
    _print(trace.name, found)


@group.command("convert")
@reports_errors
def convert(
    trace: Source,
    out: Target,
    form: Form = "",
    block_tokens: Block = 0,
    strict: Strict = False,
    tokenizer: Tokenizer = None,
    out_block: Annotated[
        int, typer.Option(min=1, max=1 << 20, help="Tokens of a block in what is written.")
    ] = 512,
) -> None:
    """Write a trace of any format as Mooncake's JSON lines, in order of time."""
    from moonpool.workload.write import Numbers

    problems = _problems(strict)
    groups = _read(trace, problems, form, block_tokens, tokenizer)
    _write(groups, out, Numbers(), out_block)
    _tell(problems)


@group.command("anonymize")
@reports_errors
def anonymize(
    trace: Source,
    out: Target,
    key_file: Annotated[
        Path, typer.Option(help="File with a secret of 16 bytes or more.", metavar="FILE")
    ],
    form: Form = "",
    block_tokens: Block = 0,
    strict: Strict = False,
    tokenizer: Tokenizer = None,
    out_block: Annotated[
        int, typer.Option(min=1, max=1 << 20, help="Tokens of a block in what is written.")
    ] = 512,
) -> None:
    """Write a trace with keyed hashes for the names of blocks and conversations.

    Lengths and times stay as they are.
    """
    from moonpool.errors import ConfigError
    from moonpool.workload.anonymize import Keyed

    try:
        keyed = Keyed(key_file.read_bytes().strip())
    except OSError as error:
        raise ConfigError(f"key-file: {key_file}: {error.strerror or error}") from None
    except ValueError as error:
        raise ConfigError(f"key-file: {key_file}: {error}") from None
    problems = _problems(strict)
    groups = _read(trace, problems, form, block_tokens, tokenizer)
    _write(groups, out, keyed, out_block)
    _tell(problems)


@group.command("synth")
@reports_errors
def synth(
    workload: Annotated[
        str, typer.Argument(help="codex, scaling, chat or forks.", metavar="WORKLOAD")
    ],
    out: Target,
    conversations: Annotated[
        int, typer.Option(min=0, max=1_000_000, help="How many; 0: as many as usual.")
    ] = 0,
    seed: Annotated[int, typer.Option(min=0, help="The same seed, the same trace.")] = 0,
    out_block: Annotated[
        int, typer.Option(min=1, max=1 << 20, help="Tokens of a block in what is written.")
    ] = 64,
) -> None:
    """Write a workload made from published figures."""
    from moonpool.errors import ConfigError
    from moonpool.workload.workloads import WORKLOADS, groups_of
    from moonpool.workload.write import Numbers

    if workload not in WORKLOADS:
        allowed = ", ".join(WORKLOADS)
        raise ConfigError(f"workload: {workload!r} is not allowed; allowed: {allowed}")
    sessions = WORKLOADS[workload](conversations, seed)
    _write(groups_of(sessions, seed, out_block), out, Numbers(), out_block)


@group.command("record")
@reports_errors
def record(
    out: Annotated[Path, typer.Argument(help="File to write; it must not exist.")],
    instance: Annotated[
        list[str], typer.Option(help="An engine, or what stands before it.", metavar="URL")
    ],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[str, typer.Option(help="Port; 0 lets the system choose.")] = "",
    policy: Annotated[str, typer.Option(help="The router's.")] = "prefix",
    tokenizer: Annotated[
        str, typer.Option(help="Where token ids come from; see moonpool router.")
    ] = "auto",
    key_file: Annotated[
        str, typer.Option(help="Secret of the hashes, 16 bytes or more; else a new one.")
    ] = "",
    size: Annotated[str, typer.Option(help="How large the file may grow.")] = "1GB",
) -> None:
    """Run a router that writes a trace of what passes through it: lengths, times, keyed hashes.

    moonpool router --record FILE does the same with all of the router's settings.
    """
    from moonpool.cli.router import run
    from moonpool.config import RouterConfig, load
    from moonpool.errors import ConfigError

    if out.exists():
        raise ConfigError(f"out: {out} exists; allowed: a new file")
    flags: dict[str, Any] = {
        "backends": instance, "host": host, "policy": policy, "tokenizer": tokenizer,
        "record": str(out), "record_key_file": key_file, "record_size": size,
        **({"port": port} if port else {}),
    }  # fmt: skip
    run(lambda: load(RouterConfig, flags=flags), None)


def _problems(strict: bool) -> Problems:
    from moonpool.workload.traces import Problems

    return Problems(strict=strict)


def _read(
    trace: Path, problems: Problems, form: str, block_tokens: int, tokenizer: Path | None
) -> Iterable[Group]:
    from moonpool.workload.traces import read_trace

    encode = None if tokenizer is None else _encoder(tokenizer)
    return read_trace(trace, problems, form=form, block_tokens=block_tokens, encode=encode)


def _encoder(directory: Path) -> Encoder:
    from moonpool.workload.tokenizer import encoder_of

    return encoder_of(directory)


def _write(groups: Iterable[Group], out: Path, renamer: Renamer, block_tokens: int) -> None:
    from moonpool.errors import ConfigError
    from moonpool.workload.write import lines_of, written

    try:
        count = written(lines_of(groups, renamer, block_tokens), out)
    except OSError as error:
        raise ConfigError(f"{out}: {error.strerror or error}") from None
    typer.echo(f"{count} requests in {out}")


def _tell(problems: Problems) -> None:
    if problems.count:
        for each in problems.shown:
            typer.echo(f"moonpool: {each}", err=True)
        typer.echo(f"moonpool: {problems.count} bad lines were left out", err=True)


def _print(name: str, found: Stats) -> None:
    rate, ratio = found.hit_rate, found.input_to_output
    rows = [
        ["requests", f"{found.requests:,}"],
        ["conversations", f"{found.sessions:,}"],
        ["input tokens", f"{found.input_tokens:,}"],
        ["output tokens", f"{found.output_tokens:,}"],
        ["input to output", "-" if ratio is None else f"{ratio:.1f}"],
        ["hit rate, nothing forgotten", "unknown" if rate is None else f"{rate:.2%}"],
        ["distinct tokens", f"{found.distinct_tokens:,}"],
        ["time", f"{found.duration_s:,.0f} s"],
    ]
    rows += [[f"reuse distance {key}, tokens", f"{value:,}"] for key, value in found.reuse.items()]
    print_table(["", "value"], rows, title=name)
    headings = ["", "mean", "p50", "p90", "p99", "longest"]
    spreads = [
        _row("prompt, tokens", found.prompt),
        _row("answer, tokens", found.answer),
        _row("growth a turn, tokens", found.growth),
        _row("turns", found.turns),
        _row("pause, s", found.pause_s, digits=1),
    ]
    print_table(headings, spreads)


def _row(name: str, spread: Spread, digits: int = 0) -> list[str]:
    values: Any = (spread.mean, spread.p50, spread.p90, spread.p99, spread.max)
    return [name, *(f"{each:,.{digits}f}" for each in values)]
