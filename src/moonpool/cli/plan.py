"""``moonpool plan``: what a pool would bring to a trace."""

from __future__ import annotations

import dataclasses
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from moonpool.cli.output import print_json, print_table, reports_errors

if TYPE_CHECKING:
    from moonpool.planner.plan import Site

PRICES = ("gpu_hour", "dram_gb_month", "ssd_gb_month")
EXACT_BYTES = 64 << 20
"""Traces whose files are larger are sampled, so that about as much is followed."""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("plan")(plan)


@reports_errors
def plan(
    trace: Annotated[Path, typer.Option(help="A trace of your traffic.", metavar="FILE")],
    model: Annotated[str, typer.Option(help="Its model.")] = "llama-3.1-8b",
    gpu: Annotated[str, typer.Option(help="The GPU.")] = "h200",
    gpus: Annotated[int, typer.Option(min=1, max=1024, help="GPUs an engine.")] = 1,
    engines: Annotated[int, typer.Option(min=1, max=4096, help="Engines.")] = 8,
    hosts: Annotated[int, typer.Option(min=1, max=4096, help="Hosts they are on.")] = 1,
    link: Annotated[str, typer.Option(help="Network of an engine: 25G to 400G.")] = "100G",
    kv_dtype: Annotated[str, typer.Option(help="bf16 or fp8.")] = "bf16",
    pool: Annotated[str, typer.Option(help="Size of the pool; empty: the knee.")] = "",
    dram: Annotated[str, typer.Option(help="What a host can lend; empty: any.")] = "",
    ssd_gb_s: Annotated[float, typer.Option(min=0.0, help="What a host's disks read.")] = 6.0,
    prices: Annotated[
        Path | None, typer.Option(help=f"TOML file with {', '.join(PRICES)} and currency.")
    ] = None,
    sample: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Share of blocks to follow; 0: as size asks.")
    ] = 0.0,
    form: Annotated[str, typer.Option("--format", help="The trace's format.")] = "",
    block_tokens: Annotated[
        int, typer.Option(min=0, max=1 << 20, help="Tokens of the trace's blocks.")
    ] = 0,
    html: Annotated[Path | None, typer.Option(help="Also write a page here.")] = None,
    png: Annotated[Path | None, typer.Option(help="Also write the figure here.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The plan as JSON.")] = False,
) -> None:
    """Say what hit rates pools of each size would have, and what that saves."""
    from moonpool.planner.demand import demand_of
    from moonpool.planner.plan import plan as made
    from moonpool.workload.traces import Problems, read_trace

    site = _site(
        (model, gpu, link, kv_dtype),
        (gpus, engines, hosts),
        _gb("dram", dram),
        ssd_gb_s,
        prices,
    )
    problems = Problems(strict=False)
    rate = sample or _rate(trace)
    groups = read_trace(trace, problems, form=form, block_tokens=block_tokens)
    found = made(demand_of(groups, engines, rate), site, _gb("pool", pool))
    if problems.count:
        typer.echo(f"moonpool: {problems.count} bad lines were left out", err=True)
    if html or png:
        _draw(found, site, f"{trace.name}: {model} on {gpu}", html, png)
    if as_json:
        print_json({"trace": trace.name, **dataclasses.asdict(found)})
        return
    from moonpool.planner.report import headings, rows_of, variant_rows

    print_table(["", "value"], [[*row] for row in rows_of(found, site)], title=trace.name)
    print_table(headings(site), variant_rows(found, site))


def _gb(name: str, text: str) -> float:
    from moonpool.config_values import parse_size
    from moonpool.errors import ConfigError

    try:
        return parse_size(text) / 1e9 if text else 0.0
    except ValueError:
        raise ConfigError(f"{name}: {text!r} is no size; allowed: such as 512GB") from None


def _rate(trace: Path) -> float:
    try:
        size = trace.stat().st_size * (4 if trace.suffix == ".gz" else 1)
    except OSError:
        return 1.0  # reading it says what is wrong
    return min(1.0, EXACT_BYTES / max(1, size))


def _draw(found: Any, site: Site, title: str, html: Path | None, png: Path | None) -> None:
    from moonpool.errors import ConfigError
    from moonpool.planner import figures, report

    figure = figures.png(found, site, title)
    try:
        if png:
            png.write_bytes(figure)
        if html:
            html.write_text(report.page(found, site, title, figure))
    except OSError as error:
        raise ConfigError(f"{error.filename}: {error.strerror}") from None


def _site(
    names: tuple[str, str, str, str],
    counts: tuple[int, int, int],
    dram_gb: float,
    ssd_gb_s: float,
    prices: Path | None,
) -> Site:
    from moonpool.planner.costs import Engine
    from moonpool.planner.machines import GPUS, LINKS
    from moonpool.planner.models import BYTES_A_VALUE, MODELS
    from moonpool.planner.plan import Site

    model, gpu, link, dtype = names
    gpus, engines, hosts = counts
    _choose("kv-dtype", dtype, BYTES_A_VALUE)
    engine = Engine(
        _choose("model", model, MODELS),
        _choose("gpu", gpu, GPUS),
        gpus,
        _choose("link", link, LINKS),
        dtype,
    )
    return Site(engine, engines, hosts, dram_gb, ssd_gb_s, **_prices(prices))


def _choose(name: str, value: str, known: dict[str, Any]) -> Any:
    from moonpool.errors import ConfigError

    if value not in known:
        raise ConfigError(f"{name}: {value!r} is not known; allowed: {', '.join(known)}")
    return known[value]


def _prices(path: Path | None) -> dict[str, Any]:
    from moonpool.errors import ConfigError

    if path is None:
        return {}
    try:
        given = tomllib.loads(path.read_text())
    except OSError as error:
        raise ConfigError(f"prices: {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"prices: {path}: {error}") from None
    found: dict[str, Any] = {"currency": str(given.pop("currency", ""))}
    for name, value in given.items():
        if name not in PRICES or not isinstance(value, int | float) or not 0 <= value < 1e9:
            allowed = f"{', '.join(PRICES)}, each 0 or more, and currency"
            raise ConfigError(f"prices: {path}: {name} = {value!r}; allowed: {allowed}")
        found[name] = float(value)
    return found
