"""Agentic conversations in closed loop, made up or from a trace: growing context, think time."""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.gpu import rig
from bench.gpu.rig import Bench, Engine, Part

from moonpool.workload.traces import read_trace


@dataclass(frozen=True, slots=True)
class Load:
    """Conversations; lengths are tokens, ``think_s`` is the mean of an exponential pause.

    trace: a file of conversations instead: the first of those whose first ``turns`` requests are
    of ``longest_prompt`` tokens at most, each with its own prompts; answers are of ``out`` tokens
    at most, pauses a ``hurry``-th of the trace's and four times ``think_s`` at most.
    """

    conversations: int = 24
    turns: int = 10
    common: int = 12_000
    first: int = 6_000
    growth: int = 2_242
    out: int = 32
    think_s: float = 0.5
    trace: str = ""
    longest_prompt: int = 60_000
    hurry: float = 10.0

    @classmethod
    def read(cls, small: bool) -> Load:
        """Return the load, with what LOAD (JSON of these fields) changes."""
        base = cls(4, 3, 600, 300, 130, 4, 0.05, longest_prompt=30_000) if small else cls()
        changes = json.loads(os.environ.get("LOAD", "{}"))
        return cls(**{**{f: getattr(base, f) for f in cls.__slots__}, **changes})

    @property
    def longest(self) -> int:
        """Tokens of the longest request, rounded up."""
        total = self.common + self.first + self.turns * self.growth
        total = (self.longest_prompt if self.trace else total) + self.out
        return -(-total // 1024) * 1024

    def describe(self) -> dict[str, Any]:
        """Return the fields."""
        found = {field: getattr(self, field) for field in type(self).__slots__}
        return {**found, "trace": Path(self.trace).name}


@dataclass(frozen=True, slots=True)
class Turn:
    """A request, and the pause after its answer, in seconds."""

    prompt: list[Part]
    out: int
    pause_s: float


def conversations(load: Load) -> list[list[Turn]]:
    """Return the conversations of a load."""
    if not load.trace:
        return [_made_up(load, number) for number in range(load.conversations)]
    found = list(_traced(load))[: load.conversations]
    if len(found) < load.conversations:
        raise ValueError(f"{load.trace} has {len(found)} conversations of this size")
    return found


def _made_up(load: Load, number: int) -> list[Turn]:
    chance = random.Random(number)
    prompt: list[Part] = [(1, load.common), (1000 + number, load.first)]
    turns = []
    for turn in range(load.turns):
        turns.append(Turn(list(prompt), load.out, chance.expovariate(1 / load.think_s)))
        prompt.append((10_000 + number * 100 + turn, load.growth))
    return turns


def _traced(load: Load) -> Iterator[list[Turn]]:
    for number, group in enumerate(read_trace(Path(load.trace))):
        requests = list(group.requests)[: load.turns]
        if len(requests) < load.turns or any(
            request.input_tokens > load.longest_prompt for request in requests
        ):
            continue
        turns = []
        for request in requests:
            size, left = group.block_tokens, request.input_tokens
            prompt: list[Part] = []
            for block in request.blocks.tolist():
                prompt.append(((number + 1) * 1_000_000 + block, min(size, left)))
                left -= prompt[-1][1]
                if left <= 0:
                    break
            pause = min((request.think_s or 0) / load.hurry, 4 * load.think_s)
            turns.append(Turn(prompt, max(1, min(request.output_tokens, load.out)), pause))
        yield turns


async def run(bench: Bench, name: str, load: Load, engines: list[Engine], pinned: bool) -> Any:
    """Replay the conversations; a turn goes to the next engine, or with ``pinned`` to its own."""
    answers: list[dict[str, Any]] = []
    turn_number = 0

    async def converse(number: int, turns: list[Turn]) -> None:
        nonlocal turn_number
        await asyncio.sleep(random.Random(number).random() * 4 * load.think_s)
        for turn in turns:
            engine = engines[(number if pinned else turn_number) % len(engines)]
            turn_number += 1
            answer = await engine.generate(turn.prompt, out=turn.out)
            del answer["tokens"]
            answers.append(answer)
            await asyncio.sleep(turn.pause_s)

    began = time.perf_counter()
    await asyncio.gather(*(converse(i, turns) for i, turns in enumerate(conversations(load))))
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
