"""Are a pool hit's outputs those of plain vLLM? Token by token, on random weights."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

from bench.gpu.rig import Bench, Engine

OUT = 24
TAIL = 40


async def compare(
    bench: Bench, prompts: int, longest: int, plain: Engine, first: Engine, second: Engine
) -> dict[str, Any]:
    """Compare answers with plain vLLM's from its own prefix cache.

    Plain vLLM answers a prompt whose head it has cached; the pooled engine answers the same from
    what another process stored. Both then compute the same tail with the same shapes, so the
    answers must be equal to the last token; against a cold prefill they need not be, with or
    without a pool (chunks of another size round differently in bf16).
    """
    chooser = random.Random(3)
    equal, hits, differing = 0, 0, []
    for i in range(prompts):
        head = (20_000 + i, chooser.randrange(300, longest))
        tail = (30_000 + i, TAIL)
        await asyncio.gather(plain.generate([head]), first.generate([head]))
        wanted = await plain.generate([head, tail], out=OUT)
        found = await second.generate([head, tail], out=OUT)
        hits += found["cached"] > 0
        if found["tokens"] == wanted["tokens"]:
            equal += 1
        else:
            differing.append(
                {"prompt": i, "tokens": head[1], "cached": [wanted["cached"], found["cached"]]}
            )
    result = {"prompts": prompts, "equal": equal, "hits": hits, "differing": differing[:20]}
    bench.say(f"   equality: {json.dumps(result)}")
    return result
