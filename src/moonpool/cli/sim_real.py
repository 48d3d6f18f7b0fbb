"""``moonpool sim calibrate`` and ``validate``: simulations beside real engines."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from moonpool.cli.output import print_json, print_table, reports_errors

if TYPE_CHECKING:
    from moonpool.sim.hardware import Hardware

LENGTHS = "128,512,1024,2048,3072"


def register(parent: typer.Typer) -> None:
    """Add the commands."""
    parent.command()(calibrate)
    parent.command()(validate)


@reports_errors
def calibrate(
    endpoint: Annotated[
        list[str], typer.Option(help="An engine; a second one of its pool for loads.")
    ],
    json_file: Annotated[Path, typer.Option("--json", help="Write the rates.", metavar="FILE")],
    kv_bytes: Annotated[int, typer.Option(min=1, help="Of KV a token takes.")] = 16_384,
    batch_tokens: Annotated[int, typer.Option(min=1, help="The engine's batches.")] = 512,
    sequences: Annotated[int, typer.Option(min=1, help="At work at a time.")] = 4,
    lengths: Annotated[str, typer.Option(help="Of prompts, tokens.", metavar="N,N")] = LENGTHS,
    seed: Annotated[int, typer.Option(min=0, help="Of the prompts: new ones for new seeds.")] = 0,
) -> None:
    """Measure a running engine's prefill, decode step and loads, in less than a minute."""
    import json
    from dataclasses import asdict

    from moonpool.cli.sim import numbers, say, write_bytes
    from moonpool.errors import ConfigError
    from moonpool.sim.fleet import calibrate as rates
    from moonpool.sim.hardware import Hardware

    counts = numbers(lengths, "lengths", 1 << 22)
    if len(counts) < 3:
        raise ConfigError(f"lengths: {lengths!r} is not allowed; allowed: three or more")
    write_bytes(json_file, b"")
    base = Hardware(kv_bytes=kv_bytes, batch_tokens=batch_tokens, sequences=sequences)
    servers = [rates.Endpoint(each) for each in endpoint]
    measured = rates.measure(servers, sorted(counts), say, seed)
    hardware = rates.fitted(measured, base)
    found = {"format": "moonpool-rates/1", "rates": asdict(hardware), **measured.plain()}
    write_bytes(json_file, json.dumps(found, indent=1).encode() + b"\n")
    rows = [[name, f"{value:.3g}"] for name, value in asdict(hardware).items()]
    print_table(["rate", "value"], rows)


def _rates(file: Path | None) -> Hardware:
    import json

    from moonpool.errors import ConfigError
    from moonpool.sim.hardware import Hardware

    if file is None:
        return Hardware(kv_bytes=16_384, batch_tokens=512, sequences=4)
    try:
        return Hardware(**json.loads(file.read_bytes())["rates"])
    except (OSError, ValueError, KeyError, TypeError):
        text = f"rates: {file} cannot be read; allowed: what moonpool sim calibrate --json wrote"
        raise ConfigError(text) from None


def _gb(text: str, key: str) -> float:
    from moonpool.config_values import parse_size
    from moonpool.errors import ConfigError

    if text == "0" and key == "pool_size":
        return 0.0
    try:
        return parse_size(text) / 1e9
    except ValueError:
        raise ConfigError(f"{key}: {text!r} is not allowed; allowed: such as 160MB") from None


@reports_errors
def validate(
    real: Annotated[Path, typer.Option(help="What bench e2e --json wrote.", metavar="FILE")],
    sent: Annotated[Path, typer.Option(help="What bench e2e --sent wrote.", metavar="FILE")],
    rates: Annotated[
        Path | None, typer.Option(help="Of moonpool sim calibrate.", metavar="FILE")
    ] = None,
    engines: Annotated[int, typer.Option(min=1, max=256)] = 2,
    engine_kv: Annotated[str, typer.Option(help="KV memory of each engine.")] = "160MB",
    pool_size: Annotated[str, typer.Option(help="Of the pool, 0 for none.")] = "3GB",
    object_tokens: Annotated[int, typer.Option(min=1, help="Tokens of the pool's objects.")] = 256,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Simulate a replay that was run against real engines, and compare.

    Exit code 1: the hit rate is off by more than 1 point, or, with --rates, TTFT p50 by over 20 %.
    """
    from dataclasses import asdict

    from moonpool.cli.output import NOT_WELL
    from moonpool.sim.fleet.replayed import Site
    from moonpool.sim.fleet.replayed import validate as simulate

    kv_gb, pool_gb = _gb(engine_kv, "engine_kv"), _gb(pool_size, "pool_size")
    site = Site(_rates(rates), engines, kv_gb, pool_gb, object_tokens)
    found = simulate(real, sent, site)
    rows = [row for row in found.rows if rates is not None or not row.relative]
    if as_json:
        print_json({**asdict(found), "rows": [asdict(row) | {"met": row.met} for row in rows]})
    else:
        print_table(
            [found.name, "measured", "simulated", "off", "within"],
            [
                [
                    row.name,
                    f"{row.real:.3f}",
                    f"{row.simulated:.3f}",
                    f"{row.off:+.1%}" if row.relative else f"{100 * row.off:+.2f} points",
                    ("yes" if row.met else "no") if row.most < 1 else "",
                ]
                for row in rows
            ],
        )
        typer.echo(f"{found.same} of {found.requests} requests with the same cached tokens")
    if not all(row.met for row in rows):
        raise typer.Exit(NOT_WELL)
