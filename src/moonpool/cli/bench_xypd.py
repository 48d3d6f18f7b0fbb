"""``moonpool bench xypd``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from moonpool.cli.bench_routing import PIPE_COLUMNS, write
from moonpool.cli.output import NOT_WELL, reports_errors

if TYPE_CHECKING:
    from moonpool.bench.xypd import Outcome, XypdOptions
    from moonpool.demo.workload import Workload


@reports_errors
def xypd(
    configs: Annotated[
        str,
        typer.Option(
            help="Prefilling and decoding engines; a number alone: engines that do both.",
            metavar="1P1D,...",
        ),
    ] = "1P1D,2P1D,2P2D,2P4D,4P4D",
    policy: Annotated[
        list[str] | None,
        typer.Option(help="The router's; several are measured in turn.", metavar="NAME"),
    ] = None,
    prefill: Annotated[
        list[str] | None,
        typer.Option(help="An engine that runs already, in place of new ones.", metavar="URL"),
    ] = None,
    decode: Annotated[list[str] | None, typer.Option(help="The same.", metavar="URL")] = None,
    instance: Annotated[
        list[str] | None, typer.Option(help="The same, one that does both.", metavar="URL")
    ] = None,
    model: Annotated[str, typer.Option(help="What those serve.", metavar="NAME")] = "",
    master: Annotated[str, typer.Option(help="Their pool's master.", metavar="HOST:PORT")] = "",
    pool: Annotated[bool, typer.Option(help="Start a pool, too.")] = True,
    trace: Annotated[
        Path | None,
        typer.Option(help="Replay this, in place of synthesised conversations.", metavar="FILE"),
    ] = None,
    conversations: Annotated[int, typer.Option(min=1, max=10_000, help="How many.")] = 6,
    turns: Annotated[int, typer.Option(min=1, max=10_000, help="Requests in each.")] = 4,
    scale: Annotated[
        float, typer.Option(min=0.001, max=1.0, help="Length of synthesised prompts.")
    ] = 0.08,
    context: Annotated[
        int, typer.Option(min=256, max=1 << 20, help="Longest prompt that a trace is cut to.")
    ] = 2_000,
    gap: Annotated[float, typer.Option(min=0.0, help="Longest pause between turns, s.")] = 1.0,
    engine_kv_tokens: Annotated[
        int, typer.Option(min=0, help="KV cache of each new engine; 0: all conversations fit.")
    ] = 0,
    seed: Annotated[int, typer.Option(help="Of the conversations.")] = 0,
    markdown: Annotated[bool, typer.Option("--markdown", help="A table for a document.")] = False,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Also write all figures here.", metavar="FILE")
    ] = None,
    xlsx: Annotated[
        Path | None, typer.Option(help="Also write an Excel workbook.", metavar="FILE")
    ] = None,
) -> None:
    """Measure splits into prefilling and decoding engines in turn, under the same conversations.

    Exit code 1: a request failed, or an output differs between two configurations.
    """
    import logging
    from dataclasses import replace

    from moonpool.bench import xypd_book
    from moonpool.cli.interrupt import run_until_signal
    from moonpool.demo.workload import FULL, from_trace, synthetic

    chosen = _options(configs, policy or [], model)
    size = replace(
        FULL, conversations=conversations, turns=turns, factor=scale, context_tokens=context,
        gap_limit_s=gap, start_spacing_s=0.25,
    )  # fmt: skip
    # Routers that begin and end with each case would tell of every beginning and end.
    logging.getLogger("moonpool").setLevel(logging.ERROR)
    if xlsx is not None:
        xypd_book.require()
    write(json_file, "")  # where that is not possible, it is known before minutes have passed
    workload = from_trace(trace, size) if trace else synthetic(size, seed)
    given = _given(prefill or [], decode or [], instance or [], master)
    work = _run(chosen, workload, given, pool=pool, kv_tokens=engine_kv_tokens)
    outcomes = run_until_signal(work)
    _show(outcomes, workload.about, markdown, json_file, xlsx)


def _options(configs: str, policies: list[str], model: str) -> XypdOptions:
    import uuid

    from moonpool.bench.xypd import XypdOptions
    from moonpool.bench.xypd_split import splits
    from moonpool.demo.engine import BLOCK_TOKENS
    from moonpool.demo.model import BYTE_TOKENS
    from moonpool.errors import ConfigError
    from moonpool.router.policy import NAMES

    for name in policies:
        if name not in NAMES:
            raise ConfigError(f"policy: {name!r} is not allowed; allowed: {', '.join(NAMES)}")
    return XypdOptions(
        splits(configs), tuple(dict.fromkeys(policies)) or ("prefix",), model, BYTE_TOKENS,
        BLOCK_TOKENS, uuid.uuid4().hex[:8],
    )  # fmt: skip


def _given(prefill: list[str], decode: list[str], instance: list[str], master: str) -> Any:
    from moonpool.bench.xypd_fleet import Given
    from moonpool.config import RouterConfig, load

    if not (prefill or decode or instance):
        return None
    flags = {"master": master} if master else {}
    return Given(prefill, decode, instance, load(RouterConfig, flags=flags, env={}))


async def _run(
    options: XypdOptions, workload: Workload, given: Any, *, pool: bool, kv_tokens: int
) -> list[Outcome]:
    from dataclasses import replace

    from moonpool.bench.xypd import run_xypd
    from moonpool.bench.xypd_fleet import local
    from moonpool.bench.xypd_local import engine_options, pool_bytes
    from moonpool.bench.xypd_report import cells

    def say(text: str) -> None:
        typer.echo(text, err=True)

    def done(outcome: Outcome) -> None:
        say("  ".join(cells(outcome)))

    say(workload.about)
    if given is not None:
        for split in options.splits:
            given.fits(split)
        model = options.model or await given.model()
        return await run_xypd(replace(options, model=model), workload, given, say, done)
    engines = engine_options(workload, kv_tokens)
    options = replace(options, model=engines.served_name)
    async with local(engines, pool_bytes(workload, options) if pool else 0) as fleet:
        return await run_xypd(options, workload, fleet, say, done)


def _show(
    outcomes: list[Outcome], about: str, markdown: bool, json_file: Path | None, xlsx: Path | None
) -> None:
    import json

    from rich.console import Console

    from moonpool.bench import xypd_book, xypd_report

    write(json_file, json.dumps(xypd_report.as_json(outcomes, about), indent=1) + "\n")
    if xlsx is not None:
        xypd_book.write(xlsx, outcomes, about)
    if markdown:
        typer.echo(xypd_report.markdown(outcomes))
    else:
        console = Console(highlight=False)
        if not console.is_terminal:
            console.width = PIPE_COLUMNS
        console.print(xypd_report.table(outcomes))
    if not xypd_report.well(outcomes):
        raise typer.Exit(NOT_WELL)
