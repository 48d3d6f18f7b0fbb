"""What fleets ask of the pool's parts, as tables and as a figure."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import numpy as np

from moonpool.errors import ConfigError
from moonpool.sim.fleet.master import Prices
from moonpool.sim.fleet.scale import Load

PRICE_HEADINGS = ["message", "each, us", "each object in it, us"]
HEADINGS = [
    "GPUs",
    "requests/s",
    "hit rate",
    "TTFT p50, s",
    "messages/s",
    "master, cores",
    "index, GB",
    "KV events/s",
    "router, cores",
    "NIC out, Gbit/s",
    "most",
]
SHARD_HEADINGS = [
    "GPUs",
    "masters",
    "by key: messages/s",
    "each busy",
    "by chain: messages/s",
    "each busy",
]
BUSY_MOST = 0.7
"""Of a master's core: above that, messages wait for one another longer than they are served."""
SHARDS = (1, 2, 4, 8, 16)
Row = list[str]


def price_rows(prices: Prices, event_s: float) -> list[Row]:
    """Return what a master's messages cost, its memory, and a block in a router's index."""
    rows = [
        [kind, f"{1e6 * each:.1f}", f"{1e6 * prices.item[kind]:.2f}"]
        for kind, each in prices.message.items()
    ]
    rows.append(["router: a block that comes or goes", "", f"{1e6 * event_s:.2f}"])
    return [*rows, ["master: memory of an object, bytes", "", f"{prices.object_bytes:.0f}"]]


def rows(loads: Sequence[Load]) -> list[Row]:
    """Return a row for each fleet."""
    return [
        [
            f"{each.gpus:,}",
            f"{each.summary.requests_s:,.1f}",
            f"{each.summary.hit_rate:.1%}",
            f"{each.summary.ttft_s.p50:.3f}",
            f"{sum(each.messages_s.values()):,.0f}",
            f"{each.master_busy:.2f}",
            f"{each.full_index_bytes / 1e9:.2f}",
            f"{each.events_s:,.0f}",
            f"{each.router_busy:.2f}",
            f"{each.nic_out_gbit_s:.0f}",
            f"{each.nic_out_most_gbit_s:.0f}",
        ]
        for each in loads
    ]


def sharded(load: Load, prices: Prices, shards: int) -> tuple[float, float]:
    """Return messages a second of all masters, and cores of each, if so many share the keys.

    A message that names fewer objects than there are masters goes to as many of them only.
    """
    messages = cores = 0.0
    for kind, rate in load.messages_s.items():
        each = load.items_s[kind] / rate if rate else 0.0
        parts = rate * max(1.0, min(float(shards), each))
        messages += parts
        cores += parts * prices.message[kind] + load.items_s[kind] * prices.item[kind]
    return messages, cores / shards


def by_chain(load: Load, prices: Prices, shards: int) -> tuple[float, float]:
    """Return the same where a prompt's objects have one master, but for those that many prompts
    begin with: a lookup, a lease and its release ask a second one for these."""
    messages = cores = 0.0
    for kind, rate in load.messages_s.items():
        parts = rate * (2.0 if shards > 1 and kind in ("match", "hold") else 1.0)
        messages += parts
        cores += parts * prices.message[kind] + load.items_s[kind] * prices.item[kind]
    return messages, cores / shards


def shard_rows(loads: Sequence[Load], prices: Prices) -> list[Row]:
    """Return what sharding does to the largest fleets."""
    found = []
    for load in loads[-2:]:
        for shards in SHARDS:
            messages, busy = sharded(load, prices, shards)
            fewer, less = by_chain(load, prices, shards)
            found.append(
                [
                    f"{load.gpus:,}",
                    str(shards),
                    f"{messages:,.0f}",
                    f"{busy:.0%}",
                    f"{fewer:,.0f}",
                    f"{less:.0%}",
                ]
            )
    return found


def figure(loads: Sequence[Load], prices: Prices, event_s: float) -> bytes:
    """Return a PNG: cores of master and router, and the network of a host, by GPUs."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigError("a figure needs matplotlib; install moonpool[bench]") from None
    canvas = Figure(figsize=(12, 4.2), layout="constrained")
    cores, masters, network = canvas.subplots(1, 3)
    gpus = [each.gpus for each in loads]
    _draw_cores(cores, loads, gpus)
    _draw_masters(masters, loads[-1], prices)
    _draw_network(network, loads, gpus)
    held = io.BytesIO()
    canvas.savefig(held, format="png", dpi=120)
    return held.getvalue()


def _draw_cores(axes: Any, loads: Sequence[Load], gpus: list[int]) -> None:
    axes.plot(gpus, [each.master_busy for each in loads], "o-", label="master")
    axes.plot(gpus, [each.router_busy for each in loads], "s-", label="router's index, KV events")
    axes.axhline(1.0, color="0.4", linestyle=":", label="one core")
    axes.set_xlabel("GPUs")
    axes.set_ylabel("cores")
    axes.set_title("One master, one router")
    axes.set_xlim(0)
    axes.set_ylim(0)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)


def _draw_masters(axes: Any, load: Load, prices: Prices) -> None:
    counts = np.arange(1, 17)
    by_key = [100 * sharded(load, prices, int(count))[1] for count in counts]
    chains = [100 * by_chain(load, prices, int(count))[1] for count in counts]
    axes.plot(counts, by_key, "o-", label="by the key of each object")
    axes.plot(counts, chains, "s-", label="by the chain it is of")
    axes.axhline(100 * BUSY_MOST, color="0.4", linestyle=":", label=f"{BUSY_MOST:.0%}")
    axes.set_xticks([1, 4, 8, 12, 16])
    axes.set_xlabel("masters that share the keys")
    axes.set_ylabel("each of them busy, %")
    axes.set_title(f"{load.gpus:,} GPUs")
    axes.set_xlim(0)
    axes.set_ylim(0)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)


def _draw_network(axes: Any, loads: Sequence[Load], gpus: list[int]) -> None:
    axes.plot(gpus, [each.nic_out_gbit_s for each in loads], "o-", label="out, mean of hosts")
    axes.plot(gpus, [each.nic_out_most_gbit_s for each in loads], "^--", label="out, busiest host")
    axes.plot(gpus, [each.nic_in_gbit_s for each in loads], "s-", label="in, mean of hosts")
    axes.axhline(4 * 400 * 0.85, color="0.4", linestyle=":", label="four 400G, 85 % of them")
    axes.set_xlabel("GPUs")
    axes.set_ylabel("Gbit/s of a host that prefills")
    axes.set_title("Network")
    axes.set_xlim(0)
    axes.set_ylim(0)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
