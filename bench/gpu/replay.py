"""Agentic conversations in closed loop: common prompt, growing context, think time."""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
from dataclasses import dataclass
from typing import Any

from bench.gpu import rig
from bench.gpu.rig import Bench, Engine, Part


@dataclass(frozen=True, slots=True)
class Load:
    """Conversations; lengths are tokens, ``think_s`` is the mean of an exponential pause."""

    conversations: int = 24
    turns: int = 10
    common: int = 12_000
    first: int = 6_000
    growth: int = 2_242
    out: int = 32
    think_s: float = 0.5

    @classmethod
    def read(cls, small: bool) -> Load:
        """Return the load, with what LOAD (JSON of these fields) changes."""
        base = cls(4, 3, 600, 300, 130, 4, 0.05) if small else cls()
        changes = json.loads(os.environ.get("LOAD", "{}"))
        return cls(**{**{f: getattr(base, f) for f in cls.__slots__}, **changes})

    @property
    def longest(self) -> int:
        """Tokens of the longest request, rounded up."""
        total = self.common + self.first + self.turns * self.growth + self.out
        return -(-total // 1024) * 1024

    def describe(self) -> dict[str, Any]:
        """Return the fields."""
        return {field: getattr(self, field) for field in type(self).__slots__}


async def run(bench: Bench, name: str, load: Load, engines: list[Engine], pinned: bool) -> Any:
    """Replay the conversations; a turn goes to the next engine, or with ``pinned`` to its own."""
    answers: list[dict[str, Any]] = []
    turn_number = 0

    async def conversation(number: int) -> None:
        nonlocal turn_number
        chance = random.Random(number)
        prompt: list[Part] = [(1, load.common), (1000 + number, load.first)]
        await asyncio.sleep(chance.random() * 4 * load.think_s)
        for turn in range(load.turns):
            engine = engines[(number if pinned else turn_number) % len(engines)]
            turn_number += 1
            answer = await engine.generate(prompt, out=load.out)
            del answer["tokens"]
            answers.append(answer)
            prompt = [*prompt, (10_000 + number * 100 + turn, load.growth)]
            await asyncio.sleep(chance.expovariate(1 / load.think_s))

    began = time.perf_counter()
    await asyncio.gather(*(conversation(i) for i in range(load.conversations)))
    elapsed = time.perf_counter() - began
    first = [answer["times"][0] for answer in answers]
    whole = [answer["times"][-1] for answer in answers]
    tokens = sum(answer["prompt"] for answer in answers)
    result = {
        "load": load.describe(),
        "engines": len(engines),
        "turns": len(answers),
        "seconds": round(elapsed, 2),
        "turns_per_s": round(len(answers) / elapsed, 3),
        "prompt_tokens_per_s": round(tokens / elapsed),
        "hit_rate": round(sum(answer["cached"] for answer in answers) / tokens, 4),
        **{f"ttft_p{p}": round(rig.percentile(first, p / 100), 4) for p in (50, 90, 99)},
        **{f"e2e_p{p}": round(rig.percentile(whole, p / 100), 4) for p in (50, 90, 99)},
    }
    bench.say(f"   {name}: {json.dumps(result)}")
    return result
