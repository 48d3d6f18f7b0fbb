"""``moonpool bench e2e``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from moonpool.cli.output import INTERRUPTED, NOT_WELL, print_table, printable, reports_errors

if TYPE_CHECKING:
    from moonpool.bench.e2e.job import Job

File = Annotated[Path | None, typer.Option(metavar="FILE")]


@reports_errors
def e2e(
    endpoint: Annotated[
        list[str] | None,
        typer.Option(help="Where to send: an engine, or a router; may be repeated.", metavar="URL"),
    ] = None,
    trace: Annotated[Path | None, typer.Option(help="What to send.", metavar="FILE")] = None,
    mode: Annotated[
        str,
        typer.Option(
            help="closed: a conversation's next request comes its pause after the answer before; "
            "open: at its time in the trace."
        ),
    ] = "closed",
    concurrency: Annotated[
        int,
        typer.Option(
            min=1, max=16_384, help="Conversations at a time; in an open loop requests in flight."
        ),
    ] = 16,
    balance: Annotated[
        str, typer.Option(help="Endpoints in turn by request, or by session.")
    ] = "request",
    think_scale: Annotated[
        float, typer.Option(min=0.0, max=1e6, help="Pauses between turns, times this.")
    ] = 1.0,
    think_max: Annotated[
        float, typer.Option(min=0.0, max=1e6, help="Longest pause, seconds.")
    ] = 3600.0,
    spacing: Annotated[
        float, typer.Option(min=0.0, max=1e6, help="Seconds between conversations' beginnings.")
    ] = 0.0,
    speed: Annotated[
        float, typer.Option(min=1e-6, max=1e6, help="Of an open loop: 2 halves the trace's times.")
    ] = 1.0,
    requests: Annotated[
        int, typer.Option(min=0, max=1_000_000, help="The first so many; 0: all.")
    ] = 0,
    sessions: Annotated[int, typer.Option(min=0, help="Of the first so many conversations.")] = 0,
    turns: Annotated[int, typer.Option(min=0, help="The first so many of each.")] = 0,
    block: Annotated[
        int,
        typer.Option(
            min=0, max=1 << 20, help="Cut each of the trace's blocks to so many tokens; 0: not."
        ),
    ] = 0,
    max_output: Annotated[int, typer.Option(min=0, help="Longest answer; 0: as traced.")] = 0,
    context: Annotated[
        int, typer.Option(min=0, help="Leave longer requests out; 0: what the endpoint says.")
    ] = 0,
    trace_format: Annotated[str, typer.Option("--format", help="The trace's format.")] = "",
    trace_block: Annotated[
        int, typer.Option(min=0, max=1 << 20, help="Tokens of the trace's blocks.")
    ] = 0,
    tokenizer: Annotated[
        Path | None, typer.Option(help="Directory of the tokenizer that chats are hashed with.")
    ] = None,
    model: Annotated[str, typer.Option(help="Its name; else the endpoint's first.")] = "",
    vocabulary: Annotated[
        int, typer.Option(min=0, max=1 << 31, help="Prompts' tokens are below it; 0: the model's.")
    ] = 0,
    seed: Annotated[int, typer.Option(min=0, help="Another one gives other tokens.")] = 0,
    warm_up: Annotated[
        int, typer.Option(min=0, max=1000, help="Requests to each endpoint before, not counted.")
    ] = 1,
    request_timeout: Annotated[
        float, typer.Option(min=0.1, max=86_400, help="Longest a request may take, seconds.")
    ] = 600.0,
    limit: Annotated[
        float, typer.Option(min=0.0, max=1e7, help="Longest run, seconds; 0: until all is sent.")
    ] = 0.0,
    plain: Annotated[
        bool, typer.Option("--plain", help="Leave out what only vLLM understands.")
    ] = False,
    metrics: Annotated[
        list[str] | None,
        typer.Option(help="Engines whose counters are read, if not the endpoints'.", metavar="URL"),
    ] = None,
    pool: Annotated[
        list[str] | None,
        typer.Option(help="HTTP side of the pool's master, for its counters.", metavar="URL"),
    ] = None,
    label: Annotated[str, typer.Option(help="What to call the run in reports.")] = "",
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Also write all of it.", metavar="FILE")
    ] = None,
    html: Annotated[
        Path | None, typer.Option(help="Also write one page with figures.", metavar="FILE")
    ] = None,
    figures: Annotated[
        Path | None, typer.Option(help="Also write the figures as PNG.", metavar="DIR")
    ] = None,
    sent: Annotated[
        Path | None, typer.Option(help="Also write what was sent, as a trace.", metavar="FILE")
    ] = None,
    compare: Annotated[
        tuple[Path, Path] | None,
        typer.Option(help="Send nothing: show two runs' JSON side by side.", metavar="A B"),
    ] = None,
) -> None:
    """Send a trace to engines; measure times, throughput, and hits by source.

    Exit code 1: a request failed. Ctrl-C ends the run and shows what there is.
    """
    from moonpool.bench.e2e.files import Files
    from moonpool.bench.e2e.job import Job
    from moonpool.errors import ConfigError
    from moonpool.workload.selection import Cut

    files = Files(json_file, html, figures, sent)
    files.check()
    if compare is not None:
        _compare(*compare, files)
        return
    if not endpoint or trace is None:
        raise ConfigError("endpoint, trace: both are needed; allowed: --endpoint URL --trace FILE")
    cut = Cut(requests, sessions, turns, block, max_output, context, spacing)
    job = Job(
        endpoints=tuple(endpoint), trace=trace, cut=cut, mode=mode, concurrency=concurrency,
        balance=balance, think_scale=think_scale, think_max_s=think_max, speed=speed,
        trace_format=trace_format, trace_block=trace_block, tokenizer=tokenizer, model=model,
        vocabulary=vocabulary, seed=seed, warm_up=warm_up, request_timeout_s=request_timeout,
        limit_s=limit, plain=plain, metrics=tuple(metrics or ()), pools=tuple(pool or ()),
        label=label,
    )  # fmt: skip
    _run(job, files)


def _run(job: Job, files: Any) -> None:
    from moonpool.bench.e2e.job import run
    from moonpool.bench.e2e.measure import INTERRUPTED as STOPPED
    from moonpool.cli.interrupt import run_until_signal

    found, sent = run_until_signal(run(job, lambda text: typer.echo(f"moonpool: {text}", err=True)))
    files.write(found, sent)
    _print(found)
    if found["ended"] == STOPPED:
        raise typer.Exit(INTERRUPTED)
    if found["figures"]["failures"]:
        raise typer.Exit(NOT_WELL)


def _print(found: Any) -> None:
    from moonpool.bench.e2e import rows

    typer.echo(printable(rows.heading(found)))
    print_table(["", *rows.SHOWN], rows.time_rows(found))
    print_table(["prompts", "tokens", "share"], rows.hit_rows(found))
    print_table(["", "value"], [list(each) for each in rows.facts(found)])


def _compare(first: Path, second: Path, files: Any) -> None:
    from moonpool.bench.e2e.compare import COLUMNS, labels, ratio_rows, read, warning

    left, right = read(first), read(second)
    one, other = labels(first, second, left, right)
    files.write_comparison((one, left), (other, right))
    if text := warning(left, right):
        typer.echo(f"moonpool: {text}", err=True)
    print_table(["", one, other, *COLUMNS], ratio_rows(left, right))
