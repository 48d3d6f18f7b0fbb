"""Faults of the pool below a real engine. Run by ``test_faults`` in a process of its own:
``python -m tests.e2e.vllm.faults WAY MODEL FOLDER`` writes what it found into FOLDER/WAY.json.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.e2e.vllm.bed import LONG_ANSWER, Bed, leaks, long_prompts
from tests.e2e.vllm.logprobs import difference
from tests.integration.processes import freeze

Findings = dict[str, Any]
BLOCKS = {"tcp": 40, "shm": 20}
"""Of the engine's cache: prompts of one case fit, those of the preemption case do not. The model on
shared memory needs fewer, as it keeps a window."""


def killed_while_loading(bed: Bed, who: str) -> Findings:
    tokens, expected = bed.stored()
    failed = bed.count("loads_failed")
    with bed.stalled():
        bed.begin(tokens)
        bed.engine.wait_for(lambda: bed.engine.side._loads.loading == 1)
        bed.kill(who)
    answer = bed.end()
    found = {
        "difference": difference(answer, expected),
        "failed": bed.count("loads_failed") - failed,
    }
    bed.mend(who)
    return found


def killed_while_saving(bed: Bed, who: str) -> Findings:
    tokens, expected = bed.fresh()
    with bed.stalled():
        bed.begin(tokens)
        bed.engine.wait_for(lambda: bed.engine.side.pins.jobs > 0)
        bed.kill(who)
    answer = bed.end()
    bed.engine.settle()
    bed.mend(who)
    return {"difference": difference(answer, expected)}


def slow(bed: Bed) -> Findings:
    """A node (over TCP) or the master (bytes in shared memory) stands still during a request."""
    tokens, expected = bed.stored()
    failed = bed.count("loads_failed")
    process = (bed.node if bed.way == "tcp" else bed.master).process
    freeze(process.pid)
    try:
        bed.begin(tokens)
        answer = bed.end()
    finally:
        os.kill(process.pid, signal.SIGCONT)
    found = {
        "difference": difference(answer, expected),
        "failed": bed.count("loads_failed") - failed,
    }
    bed.engine.wait_for(bed.engine.connected, 30)
    bed.engine.forget()
    again = bed.engine.run([tokens], len(expected["tokens"]))[0]
    return {**found, "again": difference(again, expected)}


def corrupt(bed: Bed) -> Findings:
    """Every object of a prompt is changed in the segment's file between save and load."""
    earlier = {one.key for one in bed.probe.list(namespace=bed.engine.side.namespace)}
    tokens, expected = bed.stored()
    keys = [one.key for one in bed.probe.list(namespace=bed.engine.side.namespace)]
    (path,) = bed.node.segment_dir.glob("**/*.seg")
    content = path.read_bytes()
    with path.open("r+b") as file:
        for key in set(keys) - earlier:
            value = bed.probe.get(key)
            file.seek(content.index(value) + 100)
            file.write(bytes([value[100] ^ 0xFF]))
    before = bed.count("corrupt_objects")
    answers = [bed.engine.run([tokens], len(expected["tokens"]))[0]]
    bed.engine.forget()
    answers += bed.engine.run([tokens], len(expected["tokens"]))
    return {
        "difference": max(difference(one, expected) for one in answers),
        "corrupt": bed.count("corrupt_objects") - before,
    }


def preemption(bed: Bed) -> Findings:
    """More requests than blocks: loads run while others are preempted, load again, and save."""
    preempted, loads = _preemptions(bed), bed.count("loads")
    worst = 0.0
    for _ in range(2):
        answers = bed.engine.run(long_prompts(), LONG_ANSWER)
        pairs = zip(answers, bed.plain_long, strict=True)
        worst = max([worst, *(difference(one, expected) for one, expected in pairs)])
        bed.engine.forget()
    return {
        "difference": worst,
        "preempted": _preemptions(bed) - preempted,
        "loads": bed.count("loads") - loads,
    }


def _preemptions(bed: Bed) -> int:
    values = {m.name: m for m in bed.engine.llm.get_metrics()}
    return int(values["vllm:num_preemptions"].value)


def abort_while_loading(bed: Bed) -> Findings:
    tokens, expected = bed.stored()
    with bed.stalled():
        name = bed.begin(tokens)
        bed.engine.wait_for(lambda: bed.engine.side._loads.loading == 1)
        bed.engine.llm.llm_engine.abort_request([name], internal=True)
        for _ in range(5):
            bed.engine.core.step_fn()
    return _after_abort(bed, tokens, expected)


def abort_while_saving(bed: Bed) -> Findings:
    tokens, expected = bed.fresh()
    with bed.stalled():
        name = bed.begin(tokens)
        bed.engine.wait_for(lambda: bed.engine.side.pins.jobs > 0)
        bed.engine.llm.llm_engine.abort_request([name], internal=True)
        for _ in range(5):
            bed.engine.core.step_fn()
    return _after_abort(bed, tokens, expected)


def _after_abort(bed: Bed, tokens: list[int], expected: Any) -> Findings:
    bed.engine.forget()
    left = len(bed.engine.scheduler.requests)
    answer = bed.engine.run([tokens], len(expected["tokens"]))[0]
    return {"left": left, "difference": difference(answer, expected)}


def _killed(
    case: Callable[[Bed, str], Findings], who: str
) -> tuple[str, Callable[[Bed], Findings]]:
    return f"{case.__name__} {who}", lambda bed: case(bed, who)


CASES: dict[str, Callable[[Bed], Findings]] = dict(
    [
        *(_killed(killed_while_loading, who) for who in ("node", "master", "all")),
        *(_killed(killed_while_saving, who) for who in ("node", "master", "all")),
        *((one.__name__, one) for one in (slow, corrupt, preemption)),
        *((one.__name__, one) for one in (abort_while_loading, abort_while_saving)),
    ]
)


def main(way: str, model: str, folder: str) -> None:
    """Try all cases on one engine; one that raises does not end the others."""
    options = {"num_gpu_blocks_override": BLOCKS[way], "max_model_len": 512}
    bed = Bed(Path(model), Path(folder), way, **options)
    findings: Findings = {}
    try:
        start = bed.warm()
        for name, case in CASES.items():
            try:
                found = case(bed)
                held = bed.settled(start)
                findings[name] = {**found, "held": held, "leaks": leaks(start, held)}
            except Exception:  # noqa: BLE001 - reported by the test
                findings[name] = {"raised": traceback.format_exc()}
                bed.abandon()
        findings["engine"] = {"errors": bed.count("errors"), "held at the start": start}
    finally:
        bed.close()
    (Path(folder) / f"{way}.json").write_text(json.dumps(findings))


if __name__ == "__main__":
    main(*sys.argv[1:4])
