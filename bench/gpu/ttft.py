"""Time to the first token: recompute, hits in the engine's HBM, hits in each kind of pool."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from bench.gpu import rig
from bench.gpu.rig import Bench, Engine

TAIL = 512
REPEATS = int(os.environ.get("REPEATS", "3"))


BUS = """
import json, time, torch
n = 1 << 30
host = torch.empty(n, dtype=torch.uint8, pin_memory=True)
device = torch.empty(n, dtype=torch.uint8, device="cuda")
found = {}
for name, to, source in (("h2d", device, host), ("d2h", host, device)):
    rates = []
    for _ in range(6):
        torch.cuda.synchronize()
        began = time.perf_counter()
        to.copy_(source, non_blocking=True)
        torch.cuda.synchronize()
        rates.append(n / (time.perf_counter() - began) / 1e9)
    found[name + "_GBps"] = round(sorted(rates)[3], 2)
print(json.dumps(found))
"""


async def bus(bench: Bench) -> dict[str, Any]:
    """Return what a plain pinned copy reaches on this machine's bus, in a process of its own."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", BUS, stdout=asyncio.subprocess.PIPE
    )
    said, _ = await process.communicate()
    found: dict[str, Any] = json.loads(said)
    bench.say(f"   bus: {found}")
    return found


async def moonpool(
    bench: Bench, lengths: list[int], plain: Engine, first: Engine, second: Engine
) -> dict[str, Any]:
    """Measure plain vLLM beside a pool hit that another engine's process stored."""
    rows: dict[str, Any] = {}
    for n in lengths:
        cold = await plain.generate([(n, n)])
        local = [await plain.generate([(n, n), (90 + i, TAIL)]) for i in range(REPEATS)]
        stored = await first.generate([(n, n)])
        began = time.perf_counter()
        emptied = await first.empties(5.0)  # which it cannot while a save holds blocks
        saved_s = time.perf_counter() - began
        hits = []
        for i in range(REPEATS):
            await second.empty()
            hits.append(await second.generate([(n, n), (90 + i, TAIL)]))
        rows[str(n)] = {
            "recompute": cold["ttft"],
            "hbm": spread(local),
            "cold_with_saves": stored["ttft"],
            "saved_after_s": round(saved_s, 3) if emptied else None,
            "pool": spread(hits),
        }
        bench.say(f"   {n}: {json.dumps(rows[str(n)])}")
    return rows


async def offloading(bench: Bench, lengths: list[int], engine: Engine) -> dict[str, Any]:
    """Measure vLLM's own connector: each hit from the engine's private host memory."""
    rows: dict[str, Any] = {}
    for n in lengths:
        cold = await engine.generate([(n, n)])
        hits = []
        for i in range(REPEATS):
            await asyncio.sleep(0.5)
            await engine.empty()
            hits.append(await engine.generate([(n, n), (90 + i, TAIL)]))
        rows[str(n)] = {"cold_with_saves": cold["ttft"], "offloading": spread(hits)}
        bench.say(f"   {n}: {json.dumps(rows[str(n)])}")
    return rows


async def mooncake(
    bench: Bench, lengths: list[int], first: Engine, second: Engine
) -> dict[str, Any]:
    """Measure vLLM's MooncakeStoreConnector with the real wheel over TCP, across processes."""
    rows: dict[str, Any] = {}
    settle_s = float(os.environ.get("SETTLE_S", "6"))
    for n in lengths:
        row: dict[str, Any] = {}
        try:
            row["cold_with_saves"] = (await first.generate([(n, n)]))["ttft"]
            await asyncio.sleep(settle_s * n / 32_000)
            hits: list[dict[str, Any]] = []
            for i in range(REPEATS):
                # Blocks that it stores are not free before it steps again.
                if hits and not await second.empties(5.0):
                    break
                hits.append(await second.generate([(n, n), (90 + i, TAIL)]))
            row["mooncake"] = spread(hits)
        except (RuntimeError, TimeoutError) as error:
            row["error"] = repr(error)[:200]
        rows[str(n)] = row
        bench.say(f"   {n}: {json.dumps(row)}")
    return rows


def spread(answers: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the times of repetitions, and what the engine says was cached."""
    times = [answer["ttft"] for answer in answers]
    return {
        "median": rig.median(times),
        "all": times,
        "cached": [answer["cached"] for answer in answers],
    }


MOONCAKE_TUNING = {
    "MC_TCP_ENABLE_CONNECTION_POOL": "1",
    "MC_TCP_MAX_QUEUED_TRANSFERS_PER_PEER": "16384",
    "MC_TCP_MAX_PENDING_ADMISSIONS_PER_PEER": "16384",
    "MC_TCP_SLICE_SIZE": str(2 << 20),
}
"""Without these, a step's puts and a prompt's gets are more than it queues, and fail. A value that
it takes for too large (65,536 is) is ignored."""


def write_mooncake(bench: Bench, port: int, nbytes: int) -> tuple[list[str], dict[str, str]]:
    """Return the command of Mooncake's master and the environment of its engines.

    ``enable_offload`` has no disk here: with it vLLM cuts loads into batches of 1 GiB, which is
    what gets a long prompt through.
    """
    kit = os.environ.get("KIT", "")
    binary = Path(kit) / "site" / "mooncake" / "mooncake_master"
    config = bench.place / "mooncake.json"
    config.write_text(
        json.dumps(
            {
                "metadata_server": "P2PHANDSHAKE",
                "master_server_address": f"127.0.0.1:{port}",
                "global_segment_size": nbytes,
                "local_buffer_size": 2 << 30,
                "protocol": "tcp",
                "device_name": "",
                "enable_offload": True,
            }
        )
    )
    tuning = json.loads(os.environ.get("MOONCAKE", "null")) or MOONCAKE_TUNING
    return [str(binary), f"--port={port}", "--default_kv_lease_ttl=60000"], {
        "MOONCAKE_CONFIG_PATH": str(config),
        **tuning,
    }
