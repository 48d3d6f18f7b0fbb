"""A replay against real engines, simulated: the same requests, at the same times, to the same ones.

Reads what ``moonpool bench e2e --json F --sent G`` wrote.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from moonpool.errors import ConfigError
from moonpool.sim.fleet.fleet import Fleet
from moonpool.sim.fleet.pool import PoolShape
from moonpool.sim.fleet.records import Summary
from moonpool.sim.fleet.request import Request
from moonpool.sim.fleet.shape import FleetShape, Group
from moonpool.sim.fleet.traces import Names, Timed
from moonpool.sim.hardware import Hardware

FORMAT = "moonpool-e2e/1"
PIECE_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Site:
    """Where the replay ran. kv_gb, pool_gb: of each engine and of all; pool 0 for none."""

    hardware: Hardware
    engines: int = 2
    kv_gb: float = 160 * 1.048576e-3
    pool_gb: float = 3 * 1.073741824
    object_tokens: int = 256

    def shape(self, block_tokens: int) -> FleetShape:
        """Return the fleet."""
        hardware = self.hardware
        tokens = int(self.kv_gb * 1e9 / hardware.kv_bytes)
        room = replace(hardware, hbm_tokens=tokens)
        group = Group(self.engines, room, 1 / self.engines)
        pool = PoolShape(self.pool_gb, self.object_tokens // block_tokens)
        return FleetShape(
            both=group,
            pool=pool if self.pool_gb else None,
            block_tokens=block_tokens,
            call_bytes=PIECE_BYTES,
        )


@dataclass(frozen=True, slots=True)
class Row:
    """One figure: measured, simulated, and how far apart these may be."""

    name: str
    real: float
    simulated: float
    most: float
    relative: bool

    @property
    def off(self) -> float:
        """How far apart, as a share of the measured one or as a difference."""
        difference = self.simulated - self.real
        return difference / self.real if self.relative and self.real else difference

    @property
    def met(self) -> bool:
        """Whether that is near enough."""
        return abs(self.off) <= self.most


@dataclass(frozen=True, slots=True)
class Validation:
    """A replay and its simulation. same: requests of which as many tokens were cached."""

    name: str
    requests: int
    same: int
    rows: list[Row]
    summary: Summary


HIT_POINTS, TTFT_SHARE = 0.01, 0.20


def validate(real_file: Path, sent_file: Path, site: Site) -> Validation:
    """Simulate a replay; raise ConfigError for files that are not of one."""
    real = _read(real_file)
    rows = sorted(real["requests"], key=lambda each: each["sent_s"])
    requests = _requests(real, rows, sent_file, site.engines)
    fleet = Fleet(site.shape(int(real["workload"]["engine_block_tokens"])))
    fleet.run(Timed(list(zip([each["sent_s"] for each in rows], requests, strict=True))))
    summary = fleet.records.summary()
    same = sum(
        request.hit_tokens == row["cached_tokens"]
        for request, row in zip(requests, rows, strict=True)
    )
    return Validation(
        real_file.stem, len(rows), same, _compared(real, rows, requests, summary), summary
    )


def _read(file: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = msgspec.json.decode(file.read_bytes())
    except (OSError, msgspec.MsgspecError) as error:
        text = f"real: {file} cannot be read ({error}); allowed: results of bench e2e"
        raise ConfigError(text) from None
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise ConfigError(f"real: {file} is not {FORMAT}; allowed: results of bench e2e --json")
    return found


def _compared(
    real: dict[str, Any], rows: list[dict[str, Any]], requests: list[Request], summary: Summary
) -> list[Row]:
    hits = real["hits"]
    prompt = sum(each["prompt_tokens"] for each in rows)
    cached = sum(each["cached_tokens"] for each in rows)
    found = [Row("hit rate", cached / prompt, summary.hit_rate, HIT_POINTS, False)]
    if hits.get("hbm_rate") is not None:
        local, pool = summary.local_hit_rate, summary.pool_hit_rate
        found.append(Row("of it in the engines' own caches", hits["hbm_rate"], local, 1.0, False))
        found.append(Row("of it from the pool", hits["pool_rate"], pool, 1.0, False))
    # A real TTFT counts from when a request was meant to be sent; what it was late is not ours.
    ttft = [each["ttft_s"] - (each["sent_s"] - each["intended_s"]) for each in rows]
    for name, share in (("TTFT p50, s", 50), ("TTFT p90, s", 90)):
        most = TTFT_SHARE if share == 50 else 10.0
        simulated = np.percentile([each.ttft_s for each in requests], share)
        found.append(Row(name, float(np.percentile(ttft, share)), float(simulated), most, True))
    return found


class _Sent(msgspec.Struct):
    """A line of what was sent."""

    input_length: int
    hash_ids: list[int]
    session_id: str


def _sent(file: Path) -> dict[tuple[str, int], _Sent]:
    """Return what was sent, by conversation and turn."""
    found: dict[tuple[str, int], _Sent] = {}
    turns: Counter[str] = Counter()
    try:
        for line in file.read_bytes().splitlines():
            sent = msgspec.json.decode(line, type=_Sent)
            found[sent.session_id, turns[sent.session_id]] = sent
            turns[sent.session_id] += 1
        return found
    except (OSError, msgspec.MsgspecError) as error:
        text = f"sent: {file} cannot be read ({error}); allowed: what bench e2e --sent wrote"
        raise ConfigError(text) from None


def _requests(
    real: dict[str, Any], rows: list[dict[str, Any]], sent: Path, engines: int
) -> list[Request]:
    """Return the requests in the order of ``rows``, with names for the engines' blocks."""
    workload = real["workload"]
    trace_tokens, block = int(workload["block_tokens"]), int(workload["engine_block_tokens"])
    read = _sent(sent)
    several = len(real["options"]["endpoints"]) > 1
    names = Names(trace_tokens, block)
    found = []
    for row in rows:
        asked = read.get((row["session"], row["turn"]))
        if asked is None or asked.input_length != row["prompt_tokens"]:
            raise ConfigError(f"sent: {sent} is not what {row['session']!r} was sent; allowed: "
                              "the file that the same run wrote")  # fmt: skip
        keys = names.keys(asked.hash_ids, asked.input_length)
        output = max(1, row["output_tokens"])
        request = Request(row["session"], row["turn"], keys, asked.input_length, output)
        if several:
            request.engine = row["endpoint"] % engines
        found.append(request)
    return found
