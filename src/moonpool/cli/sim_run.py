"""``moonpool sim run`` and ``scale``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from moonpool.cli.output import print_json, print_table, reports_errors

if TYPE_CHECKING:
    from moonpool.sim.fleet.records import Summary
    from moonpool.sim.fleet.shape import FleetShape


def register(parent: typer.Typer) -> None:
    """Add the commands."""
    parent.command()(run)
    parent.command()(scale)
    parent.command()(h200)


def _named(table: dict[str, Any], name: str, key: str) -> Any:
    from moonpool.errors import ConfigError

    if name not in table:
        raise ConfigError(f"{key}: {name!r} is not known; allowed: {', '.join(table)}")
    return table[name]


def _shape(
    engine: tuple[str, str, int, str],
    split: str,
    gpus_a_host: int,
    link: str,
    pool: tuple[float, float],
    policy: str,
    block_tokens: int,
) -> FleetShape:
    """Return the fleet; engine: model, GPU, GPUs, kind of KV; pool: DRAM and SSD of a host, GB."""
    from moonpool.errors import ConfigError
    from moonpool.planner.machines import GPUS, LINKS
    from moonpool.planner.models import BYTES_A_VALUE, MODELS
    from moonpool.router.policy import NAMES
    from moonpool.sim.fleet.pool import PoolShape
    from moonpool.sim.fleet.presets import LATENT, hardware_of, nic_gb_s
    from moonpool.sim.fleet.shape import FleetShape, Group, split_of

    model, gpu, gpus, dtype = engine
    hardware = hardware_of(
        _named(MODELS, model, "model"),
        _named(GPUS, gpu, "gpu"),
        gpus,
        dtype if _named(dict(BYTES_A_VALUE), dtype, "kv_dtype") else "",
    )
    _named(dict.fromkeys(NAMES), policy, "policy")
    _named(LINKS, link, "link")
    if hardware.hbm_tokens < block_tokens:
        raise ConfigError(f"gpus: {gpus} x {gpu} do not hold {model}; allowed: more")
    both, prefill, decode = split_of(split)
    hosts_each = gpus / gpus_a_host

    def group(engines: int) -> Group | None:
        return Group(engines, hardware, hosts_each, gpus) if engines else None

    dram, ssd = pool
    return FleetShape(
        both=group(both),
        prefill=group(prefill),
        decode=group(decode),
        pool=PoolShape(dram, max(1, 256 // block_tokens), ssd) if dram else None,
        policy=policy,
        block_tokens=block_tokens,
        nic_gb_s=nic_gb_s(link),
        load_copies=gpus if model in LATENT else 1,
    )


@reports_errors
def run(
    workload: Annotated[str, typer.Option(help="A made one: codex, scaling, chat.")] = "codex",
    trace: Annotated[Path | None, typer.Option(help="Or a trace.", metavar="FILE")] = None,
    agents: Annotated[int, typer.Option(min=1, help="Conversations at work at a time.")] = 64,
    conversations: Annotated[int, typer.Option(min=0, help="To make, 0: as usual.")] = 0,
    speed: Annotated[float, typer.Option(min=1e-3, help="Times a trace's own pace.")] = 1.0,
    model: Annotated[str, typer.Option(help="Model.")] = "llama-3.1-8b",
    gpu: Annotated[str, typer.Option(help="a100, h200 or gb200.")] = "h200",
    gpus: Annotated[int, typer.Option(min=1, max=64, help="GPUs an engine.")] = 1,
    split: Annotated[str, typer.Option(help="Engines: 8, or 2P4D.")] = "8",
    gpus_a_host: Annotated[int, typer.Option(min=1, max=64)] = 8,
    link: Annotated[str, typer.Option(help="Of a host: 25G to 400G.")] = "100G",
    kv_dtype: Annotated[str, typer.Option(help="bf16 or fp8.")] = "bf16",
    pool_gb: Annotated[float, typer.Option(min=0.0, help="DRAM each host lends, 0: no pool.")] = 0,
    ssd_gb: Annotated[float, typer.Option(min=0.0, help="Disk behind it, each host.")] = 0.0,
    policy: Annotated[str, typer.Option(help="The router's.")] = "round_robin",
    context_tokens: Annotated[int, typer.Option(min=1, help="Longest prompt.")] = 262_144,
    block_tokens: Annotated[int, typer.Option(min=1, help="Of an engine.")] = 64,
    seed: Annotated[int, typer.Option(min=0)] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Simulate a cluster under a workload or a trace: throughput, TTFT, hits, load of its parts."""
    from dataclasses import asdict

    from moonpool.sim.fleet.fleet import Fleet
    from moonpool.sim.fleet.traces import recorded
    from moonpool.sim.fleet.traffic import Conversations, Plan
    from moonpool.workload.workloads import WORKLOADS

    shape = _shape(
        (model, gpu, gpus, kv_dtype),
        split,
        gpus_a_host,
        link,
        (pool_gb, ssd_gb),
        policy,
        block_tokens,
    )
    plan = Plan(agents, seed=seed)
    if trace is not None:
        traffic: Any = recorded(trace, block_tokens, plan, context_tokens, speed)
    else:
        made = _named(dict(WORKLOADS), workload, "workload")(conversations, seed)
        traffic = Conversations(made, block_tokens, plan)
    fleet = Fleet(shape)
    summary = fleet.run(traffic).summary()
    parts = _parts(fleet, summary)
    if as_json:
        print_json({"summary": asdict(summary), "parts": parts})
    else:
        print_table(["", "value"], _rows(summary, parts))


def _parts(fleet: Any, summary: Summary) -> dict[str, float]:
    seconds = summary.seconds or 1.0
    hosts = len(fleet.hosts)
    bytes_s = {f"{k}_gb_s": v / 1e9 / seconds / hosts for k, v in fleet.traffic_of_hosts().items()}
    busy = sum(engine.busy_s for engine in fleet.engines) / len(fleet.engines) / seconds
    return {
        "engines_busy": busy,
        "master_messages_s": sum(fleet.master.messages.values()) / seconds,
        "master_busy": fleet.master.busy_s / seconds,
        "pool_objects": float(len(fleet.pool)) if fleet.pool is not None else 0.0,
        "evicted_objects": float(fleet.pool.evicted_objects) if fleet.pool is not None else 0.0,
        **bytes_s,
    }


def _rows(summary: Summary, parts: dict[str, float]) -> list[list[str]]:
    ttft, e2e = summary.ttft_s, summary.e2e_s
    rows = [
        ["requests", f"{summary.requests:,} in {summary.seconds:,.0f} s"],
        ["requests a second", f"{summary.requests_s:.2f}"],
        ["output tokens a second", f"{summary.output_tokens_s:,.0f}"],
        ["hit rate", f"{summary.hit_rate:.2%} (ideal {summary.ideal_hit_rate:.2%})"],
        ["  own caches / pool", f"{summary.local_hit_rate:.2%} / {summary.pool_hit_rate:.2%}"],
        ["TTFT p50 / p90 / p99, s", f"{ttft.p50:.3f} / {ttft.p90:.3f} / {ttft.p99:.3f}"],
        ["end to end p50 / p90 / p99, s", f"{e2e.p50:.2f} / {e2e.p90:.2f} / {e2e.p99:.2f}"],
        ["between tokens, ms", f"{1000 * summary.itl_s:.1f}"],
    ]
    return rows + [[name.replace("_", " "), f"{value:,.4g}"] for name, value in parts.items()]


@reports_errors
def scale(
    gpus: Annotated[
        str, typer.Option(help="Multiples of 12.", metavar="N,N")
    ] = "120,1008,2016,10080",
    length_s: Annotated[float, typer.Option(min=1.0, help="To measure, after 170 s.")] = 30.0,
    dram_gb: Annotated[float, typer.Option(min=0.1, help="Of the pool, each GPU.")] = 30.0,
    queues: Annotated[
        bool, typer.Option("--queues", help="Messages wait for one another at one master.")
    ] = False,
    figure: Annotated[Path | None, typer.Option(help="Draw it here.", metavar="FILE.png")] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write all figures.", metavar="FILE")
    ] = None,
) -> None:
    """Simulate the published scaling workload on up to 10,000 GPUs: what the pool's parts must do.

    The master's and the router's costs are measured before, on this machine.
    """
    import json
    from dataclasses import asdict

    from moonpool.cli.sim import numbers, say, write_bytes
    from moonpool.errors import ConfigError
    from moonpool.sim.fleet import measure, scale_report
    from moonpool.sim.fleet import scale as fleets

    counts = numbers(gpus, "gpus")
    if any(count % 12 for count in counts):
        raise ConfigError(f"gpus: {gpus!r} is not allowed; allowed: multiples of 12, with commas")
    for file in (figure, json_file):
        if file is not None:
            write_bytes(file, b"")
    prices, event_s = measure.prices(), measure.event_s()
    more = {"length_s": length_s, "dram_gb": dram_gb, "queues": queues}
    loads = fleets.sizes(counts, prices, event_s, say, **more)
    if json_file is not None:
        found = {"prices": asdict(prices), "event_s": event_s, "loads": [x.plain() for x in loads]}
        write_bytes(json_file, json.dumps(found, indent=1).encode() + b"\n")
    if figure is not None:
        write_bytes(figure, scale_report.figure(loads, prices, event_s))
    print_table(scale_report.PRICE_HEADINGS, scale_report.price_rows(prices, event_s))
    print_table(scale_report.HEADINGS, scale_report.rows(loads))
    print_table(scale_report.SHARD_HEADINGS, scale_report.shard_rows(loads, prices))


@reports_errors
def h200(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Simulate what was measured on H200s (docs/benchmarks.md), with fitted rates and with those
    of the model's shape."""
    from moonpool.sim.fleet import h200 as runs

    rows, found = [], {}
    for name, hardware in runs.rates().items():
        compared = [*runs.ttfts(hardware), *runs.replay(hardware)[0]]
        found[name] = [
            {"name": each.name.strip(), "measured": each.measured, "simulated": each.simulated}
            for each in compared
        ]
        rows += [
            [name, each.name, f"{each.measured:.3f}", f"{each.simulated:.3f}", f"{each.off:+.0%}"]
            for each in compared
        ]
    if as_json:
        print_json(found)
    else:
        print_table(["rates", "", "measured", "simulated", "off"], rows)
