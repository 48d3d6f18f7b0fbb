"""Prefill on one engine, decode on another, with the pool between them, or NIXL and the pool."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from typing import Any

from bench.gpu.rig import Answer, Bench, Engine, Part, median

OUT = 24
_transfers = itertools.count()


NIXL_PORT = 5680


def below_multi(pool: dict[str, Any], number: int) -> dict[str, Any]:
    """Return what an engine needs to have NIXL first and the pool second below MultiConnector.

    pool: the pool's own configuration. number: the engine's, counted from 0.
    """
    extra = {**pool["kv_connector_extra_config"], "pack_blocks": False}
    children = [
        {"kv_connector": "NixlConnector", "kv_role": "kv_both"},
        {**pool, "kv_role": "kv_both", "kv_connector_extra_config": extra},
    ]
    connector = {
        "kv_connector": "MultiConnector",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {"connectors": children},
    }
    environment = {
        "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1",
        "VLLM_NIXL_SIDE_CHANNEL_PORT": str(NIXL_PORT + number),
    }
    return {"connector": connector, "environment": environment}


async def handed_over(
    p: Engine, d: Engine, prompt: list[Part], out: int, *, peers: bool = False
) -> tuple[Answer, Answer]:
    """Send a prompt to both engines, as a router does; return their answers.

    peers: D is sent what P answers with, else both at the same time.
    """
    if peers:
        prefilled = await p.generate(
            prompt, transfer={"do_remote_decode": True, "do_remote_prefill": False}
        )
        if not prefilled["params"]:
            raise RuntimeError(f"{p.name} offers nothing")
        return prefilled, await d.generate(prompt, out, transfer=prefilled["params"])
    transfer = f"bench-{next(_transfers)}"
    to_p = {"do_remote_decode": True, "do_remote_prefill": False, "transfer_id": transfer}
    to_d = {"do_remote_decode": False, "do_remote_prefill": True, "transfer_id": transfer}
    prefilled, answer = await asyncio.gather(
        p.generate(prompt, transfer=to_p), d.generate(prompt, out, transfer=to_d)
    )
    return prefilled, answer


async def first_tokens(
    bench: Bench,
    lengths: list[int],
    repeats: int,
    plain: Engine,
    p: Engine,
    d: Engine,
    *,
    peers: bool = False,
) -> list[dict[str, Any]]:
    """TTFT of a cold prompt: of plain vLLM, of P, and of D that takes it from P; seconds.

    With ``peers`` D begins when P is done: its ``later`` is its own time.
    """
    rows = []
    for tokens in lengths:
        samples: dict[str, list[float]] = {"plain": [], "p": [], "d": [], "later": []}
        cached = []
        for repeat in range(repeats + 1):
            prompt = [(400_000 + 1000 * repeat + tokens % 997, tokens)]
            alone = await plain.generate(prompt)
            prefilled, answer = await handed_over(p, d, prompt, 2, peers=peers)
            if repeat == 0:
                continue
            samples["plain"].append(alone["ttft"])
            samples["p"].append(prefilled["ttft"])
            samples["d"].append(answer["ttft"])
            after = 0.0 if peers else prefilled["ttft"]
            samples["later"].append(answer["ttft"] - after)
            cached.append(answer["cached"])
        row = {name: round(median(values), 4) for name, values in samples.items()}
        rows.append({"tokens": tokens, **row, "cached": min(cached), "all": samples})
        bench.say(f"   split: {tokens} tokens: {json.dumps(row)} cached {min(cached)}")
        for engine in (plain, p, d):
            await engine.empty()
    return rows


async def compare(
    bench: Bench,
    prompts: int,
    longest: int,
    plain: Engine,
    p: Engine,
    d: Engine,
    *,
    peers: bool = False,
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
        _, found = await handed_over(p, d, [head, tail], OUT, peers=peers)
        cached += found["cached"] == wanted["cached"]
        if found["tokens"] == wanted["tokens"]:
            equal += 1
        else:
            differing.append({"prompt": i, "tokens": head[1], "cached": found["cached"]})
    result = {"prompts": prompts, "equal": equal, "whole": cached, "differing": differing[:20]}
    bench.say(f"   split: {json.dumps(result)}")
    return result
