"""Runs targets: counts, measures, bounds each input's time, and notes what is found."""

from __future__ import annotations

import random
import resource
import signal
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from tests.fuzz.target import Target

INPUT_CPU_S = 2.0
"""Processor time that one input may take; a busy machine does not count."""
GROWTH_BYTES_MAX = 512 << 20
ROOM_BYTES = 2 << 30
"""What may be mapped on top of what is: an input that makes somebody take more is found."""
FINDINGS_MAX = 20


class SlowError(BaseException):
    """An input takes too long. Not an Exception, so that nobody catches it on its way."""


@dataclass
class Result:
    """What became of a target's inputs. ``found``: (episode, input, text)."""

    name: str
    inputs: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    slowest_ms: float = 0.0
    seconds: float = 0.0
    grown_bytes: int = 0
    found: list[tuple[int, int, str]] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON knows it."""
        return {
            "inputs": self.inputs,
            **self.outcomes,
            "per_s": round(self.inputs / self.seconds) if self.seconds else 0,
            "seconds": round(self.seconds, 1),
            "slowest_ms": round(self.slowest_ms, 1),
            "grown_mib": round(self.grown_bytes / (1 << 20), 1),
            "found": len(self.found),
            "findings": [f"episode {e}, input {i}: {text}" for e, i, text in self.found[:10]],
        }


def fuzz(target: Target, seed: int, inputs: int, first: int = 0) -> Result:
    """Hand ``inputs`` in, from episode ``first`` on."""
    result = Result(target.name)
    before, room = signal.signal(signal.SIGVTALRM, _late), resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (_pages(0) + ROOM_BYTES, room[1]))
    started, memory = time.monotonic(), _pages(1)
    try:
        episode = first
        while result.inputs < inputs and len(result.found) < FINDINGS_MAX:
            count = min(target.episode, inputs - result.inputs)
            _episode(
                target, random.Random(f"{seed}/{target.name}/{episode}"), episode, count, result
            )
            episode += 1
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
        resource.setrlimit(resource.RLIMIT_AS, room)
        target.close()
    result.seconds = time.monotonic() - started
    result.grown_bytes = max(0, _pages(1) - memory)
    if result.grown_bytes > GROWTH_BYTES_MAX:
        result.found.append((-1, -1, f"memory has grown by {result.grown_bytes} bytes"))
    return result


def _episode(
    target: Target, chance: random.Random, episode: int, count: int, result: Result
) -> None:
    target.begin()
    number = 0
    try:
        for number in range(count):  # noqa: B007 - it says in which input something was found
            began = time.process_time()
            signal.setitimer(signal.ITIMER_VIRTUAL, INPUT_CPU_S)
            result.inputs += 1
            result.outcomes[target.take(chance)] += 1
            result.slowest_ms = max(result.slowest_ms, (time.process_time() - began) * 1e3)
        signal.setitimer(signal.ITIMER_VIRTUAL, 60 * INPUT_CPU_S)
        number = -1
        target.end()
    except (Exception, SlowError) as error:  # noqa: BLE001 - whatever it is, it is a finding
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        text = "".join(traceback.format_exception(error)[-6:])
        result.found.append((episode, number, text[-2000:]))
        result.outcomes["found"] += 1


def _late(_signal: int, _frame: FrameType | None) -> None:
    raise SlowError(f"more than {INPUT_CPU_S} s of processor time")


def _pages(which: int) -> int:
    """Return the bytes that this process has mapped (0) or resident (1)."""
    pages = int(Path("/proc/self/statm").read_text().split()[which])
    return pages * resource.getpagesize()
