"""What the pool costs the engine: saves beside a prefill, misses, and the rhythm of decoding."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from bench.gpu import rig
from bench.gpu.rig import Bench, Engine, Part

Prompts = Callable[[], list[Part]]
SETTLE = 5
"""Tokens at the start of each stream that are not counted: the batch is still forming."""


@dataclass(frozen=True, slots=True)
class Batch:
    """A decode batch: requests at once, tokens each, and how often it is repeated."""

    streams: int
    out: int
    rounds: int


@dataclass(frozen=True, slots=True)
class Side:
    """One engine of a comparison, and the prompts that arrive beside its decode batch."""

    name: str
    engine: Engine
    prompts: Prompts


async def cold_prefill(
    bench: Bench, tokens: int, rounds: int, plain: Engine, saving: Engine
) -> dict[str, Any]:
    """Compare cold prefills of an engine that saves with plain vLLM's, taking turns."""
    engines = {"plain": plain, "saving": saving}
    times: dict[str, list[float]] = {name: [] for name in engines}
    for i in range(rounds):
        for name in _turn(engines, i + 1):
            times[name].append((await engines[name].generate([(5000 + i, tokens)]))["ttft"])
            await asyncio.sleep(0.5 if bench.cpu else 1.0)
    result = _compared("prefill_s", times)
    bench.say(f"   cold prefill of {tokens} tokens: {json.dumps(result)}")
    return result


@dataclass(frozen=True, slots=True)
class Misses:
    """Prompts at once that nobody has seen, tokens each, how often; seeds from ``first_seed``."""

    prompts: int
    tokens: int
    rounds: int
    first_seed: int


async def no_hits(bench: Bench, size: Misses, engines: dict[str, Engine]) -> dict[str, Any]:
    """Compare the time for a batch of prompts that nobody has seen, taking turns; the first
    engine is what the others are compared with."""
    times: dict[str, list[float]] = {name: [] for name in engines}
    seeds = itertools.count(size.first_seed)
    for i in range(size.rounds):
        for name in _turn(engines, i + 1):
            began = time.perf_counter()
            answers = await asyncio.gather(
                *(
                    engines[name].generate([(next(seeds), size.tokens)], out=32)
                    for _ in range(size.prompts)
                )
            )
            times[name].append(time.perf_counter() - began)
            if any(answer["cached"] for answer in answers):
                raise RuntimeError("a prompt that nobody had seen was cached")
            await asyncio.sleep(0.3)
    base, *others = engines
    medians = {name: rig.median(values) for name, values in times.items()}
    result: dict[str, Any] = {
        "prompts": size.prompts,
        "tokens": size.tokens,
        "seconds": times,
        "median": medians,
        "slower": {name: medians[name] / medians[base] - 1 for name in others},
        "noise": {name: spread_of(values) for name, values in times.items()},
    }
    bench.say(f"   no hits: {json.dumps(result)}")
    return result


def spread_of(values: Sequence[float]) -> float:
    """Return half the distance between the quartiles, as a share of the median."""
    ordered = sorted(values)
    quarter = len(ordered) // 4
    return (ordered[-1 - quarter] - ordered[quarter]) / 2 / rig.median(ordered)


async def variants(
    bench: Bench,
    tokens: int,
    rounds: int,
    batch: tuple[int, int, int],
    engines: dict[str, Engine],
) -> dict[str, Any]:
    """Compare cold prefills and batches without hits of many engines, all taking turns."""
    prefill: dict[str, list[float]] = {name: [] for name in engines}
    missing: dict[str, list[float]] = {name: [] for name in engines}
    seeds = itertools.count(4_000_000)
    for i in range(rounds):
        for name in _turn(engines, i):
            answer = await engines[name].generate([(next(seeds), tokens)])
            prefill[name].append(answer["ttft"])
            await asyncio.sleep(0.4)
    prompts, length, times = batch
    for i in range(times):
        for name in _turn(engines, i):
            began = time.perf_counter()
            await asyncio.gather(
                *(engines[name].generate([(next(seeds), length)], out=32) for _ in range(prompts))
            )
            missing[name].append(time.perf_counter() - began)
    result: dict[str, Any] = {"prefill_s": prefill, "no_hits_s": missing}
    for what, found in (("prefill", prefill), ("no_hits", missing)):
        base = rig.median(next(iter(found.values())))
        result[f"{what}_slower"] = {
            name: round(rig.median(values) / base - 1, 4) for name, values in found.items()
        }
    bench.say(f"   variants: {json.dumps(result)}")
    return result


def _turn(engines: dict[str, Engine], i: int) -> list[str]:
    """Return the names, each round another one first."""
    names = list(engines)
    at = i % len(names)
    return names[at:] + names[:at]


async def rhythm(
    bench: Bench, kind: str, sides: Sequence[Side], size: Batch, every_s: float
) -> dict[str, Any]:
    """Compare inter-token latency of a decode batch while other requests arrive.

    They arrive every ``every_s`` seconds (0: none do), whatever becomes of those before. All
    engines compute the same: where one loads a prefix, the other has it in its own cache; where
    one saves what it prefills, the other only prefills.
    """
    gaps: dict[str, list[list[float]]] = {side.name: [] for side in sides}
    others: dict[str, list[dict[str, Any]]] = {side.name: [] for side in sides}
    seeds = itertools.count(900_000)
    for i in range(size.rounds):
        for side in [*sides[i % len(sides) :], *sides[: i % len(sides)]]:
            found, beside = await _decode(side, next(seeds) * 1000, size, every_s)
            gaps[side.name].append(found)
            others[side.name] += beside
    result: dict[str, Any] = {"kind": kind, "streams": size.streams, "every_s": every_s}
    for name, runs in gaps.items():
        together = [gap for run in runs for gap in run]
        result[name] = {
            **{f"p{p}": rig.percentile(together, p / 100) for p in (50, 90, 99)},
            "mean": sum(together) / len(together),
            "p99_by_round": [rig.percentile(run, 0.99) for run in runs],
            "gaps": len(together),
            "other_requests": len(others[name]),
            "other_cached_tokens": sum(answer["cached"] for answer in others[name]),
            "other_ttft_p50": rig.median([answer["ttft"] for answer in others[name]] or [0.0]),
        }
    first, *rest = (result[side.name] for side in sides)
    for side, found in zip(sides[1:], rest, strict=True):
        result[f"{side.name}_rise"] = {
            what: found[what] / first[what] - 1 for what in ("p50", "p90", "p99", "mean")
        }
    bench.say(f"   rhythm: {json.dumps(result)}")
    return result


async def _decode(
    side: Side, seed: int, size: Batch, every_s: float
) -> tuple[list[float], list[dict[str, Any]]]:
    """Return the gaps between tokens of the batch, and the answers of the requests beside it."""
    decoding = [
        asyncio.create_task(side.engine.generate([(seed + i, 1000)], out=size.out))
        for i in range(size.streams)
    ]
    await asyncio.sleep(1.0)
    beside: list[asyncio.Task[dict[str, Any]]] = []
    while every_s and not any(task.done() for task in decoding):
        beside.append(asyncio.create_task(side.engine.generate(side.prompts())))
        await asyncio.sleep(every_s)
    answers = await asyncio.gather(*decoding)
    gaps = [
        later - earlier
        for answer in answers
        for earlier, later in itertools.pairwise(answer["times"][SETTLE:])
    ]
    return gaps, list(await asyncio.gather(*beside))


def _compared(what: str, times: dict[str, list[float]]) -> dict[str, Any]:
    medians = {name: rig.median(values) for name, values in times.items()}
    return {
        what: times,
        "median": medians,
        "slower": medians["saving"] / medians["plain"] - 1,
    }


def cycle(prompts: Sequence[Sequence[Part]]) -> Prompts:
    """Return the prompts in turn, each with a few new tokens at its end."""
    order, fresh = itertools.cycle(prompts), itertools.count(7_000_000)
    return lambda: [*next(order), (next(fresh), 16)]


def unseen(tokens: int, first_seed: int) -> Prompts:
    """Return prompts that nobody has seen."""
    seeds = itertools.count(first_seed)
    return lambda: [(next(seeds), tokens)]
