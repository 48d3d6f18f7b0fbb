"""Prefill on one engine, decode on another, nothing between them but the pool."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from typing import Any

from bench.gpu.rig import Answer, Bench, Engine, Part, median

OUT = 24
_transfers = itertools.count()


async def handed_over(p: Engine, d: Engine, prompt: list[Part], out: int) -> tuple[Answer, Answer]:
    """Send a prompt to both engines at the same time, as a router does; return their answers."""
    transfer = f"bench-{next(_transfers)}"
    to_p = {"do_remote_decode": True, "do_remote_prefill": False, "transfer_id": transfer}
    to_d = {"do_remote_decode": False, "do_remote_prefill": True, "transfer_id": transfer}
    prefilled, answer = await asyncio.gather(
        p.generate(prompt, transfer=to_p), d.generate(prompt, out, transfer=to_d)
    )
    return prefilled, answer


async def first_tokens(
    bench: Bench, lengths: list[int], repeats: int, plain: Engine, p: Engine, d: Engine
) -> list[dict[str, Any]]:
    """TTFT of a cold prompt: of plain vLLM, of P, and of D that takes it from P; seconds."""
    rows = []
    for tokens in lengths:
        samples: dict[str, list[float]] = {"plain": [], "p": [], "d": [], "later": []}
        cached = []
        for repeat in range(repeats + 1):
            prompt = [(400_000 + 1000 * repeat + tokens % 997, tokens)]
            alone = await plain.generate(prompt)
            prefilled, answer = await handed_over(p, d, prompt, 2)
            if repeat == 0:
                continue
            samples["plain"].append(alone["ttft"])
            samples["p"].append(prefilled["ttft"])
            samples["d"].append(answer["ttft"])
            samples["later"].append(answer["ttft"] - prefilled["ttft"])
            cached.append(answer["cached"])
        row = {name: round(median(values), 4) for name, values in samples.items()}
        rows.append({"tokens": tokens, **row, "cached": min(cached), "all": samples})
        bench.say(f"   split: {tokens} tokens: {json.dumps(row)} cached {min(cached)}")
        for engine in (plain, p, d):
            await engine.empty()
    return rows


async def compare(
    bench: Bench, prompts: int, longest: int, plain: Engine, p: Engine, d: Engine
) -> dict[str, Any]:
    """Compare D's answers with those of plain vLLM that has the same head in its own cache.

    As in equality.py: both compute the same tail with the same shapes.
    """
    chooser = random.Random(5)
    equal, cached, differing = 0, 0, []
    for i in range(prompts):
        head = (500_000 + i, chooser.randrange(300, longest) // 16 * 16)
        tail = (600_000 + i, 9)
        await plain.generate([head])
        wanted = await plain.generate([head, tail], out=OUT)
        _, found = await handed_over(p, d, [head, tail], OUT)
        cached += found["cached"] == wanted["cached"]
        if found["tokens"] == wanted["tokens"]:
            equal += 1
        else:
            differing.append({"prompt": i, "tokens": head[1], "cached": found["cached"]})
    result = {"prompts": prompts, "equal": equal, "whole": cached, "differing": differing[:20]}
    bench.say(f"   split: {json.dumps(result)}")
    return result
