"""What is tried on real engines. Each function is run in a process of its own by ``conftest``:
``python -m tests.e2e.vllm.scenarios GROUP MODEL OUTPUT`` writes one JSON of findings.
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

import numpy as np

from moonpool.client.store import Store
from moonpool.core.keys import split
from moonpool.errors import ChecksumError, MasterUnreachableError, NotFoundError
from tests.e2e.vllm.driver import BLOCK, OBJECT, Engine, greedy, prompt, read
from tests.e2e.vllm.logprobs import difference

Findings = dict[str, Any]

SHARED = prompt(1, 300)
"""The prompt that several engines serve."""


def compare(engine: Engine, tokens: list[int], **extra: Any) -> Findings:
    """Serve a prompt cold, then from the pool."""
    cold = engine.run([tokens], **extra)[0]
    engine.forget()
    hot = engine.run([tokens], **extra)[0]
    engine.forget()
    return {
        "cold_cached": cold["cached"],
        "hot_cached": hot["cached"],
        "difference": difference(cold, hot),
    }


# --- a plain engine --------------------------------------------------------------------------


def shared(engine: Engine) -> Findings:
    found = compare(engine, SHARED)
    found["output"] = engine.run([SHARED])[0]
    engine.forget()
    return found


def full_prompt(engine: Engine) -> Findings:
    return compare(engine, prompt(2, 320))


def local_hit_inside_an_object(engine: Engine) -> Findings:
    tokens = prompt(3, 300)
    cold = engine.run([tokens])[0]
    engine.forget()
    engine.run([tokens[:100]])
    engine.settle()
    hot = engine.run([tokens])[0]
    engine.forget()
    return {"hot_cached": hot["cached"], "difference": difference(cold, hot)}


def failures(engine: Engine) -> Findings:
    found: Findings = {}
    codes = {"gone": NotFoundError.code, "wrong": ChecksumError.code}
    for name, code in codes.items():
        for place in (0, 2, 4):
            tokens = prompt(2000 + place + code, 300)
            cold = engine.run([tokens])[0]
            engine.forget()
            with engine.faults({place: code}.get):
                hot = engine.run([tokens])[0]
            engine.forget()
            again = engine.run([tokens])[0]
            engine.forget()
            found[f"{name} {place}"] = {
                "hot_cached": hot["cached"],
                "again_cached": again["cached"],
                "difference": max(difference(cold, hot), difference(cold, again)),
            }
    return found


def master_lost(engine: Engine) -> Findings:
    tokens = prompt(5, 300)
    cold = engine.run([tokens])[0]
    engine.forget()

    def lost(at: int) -> int:
        raise MasterUnreachableError("gone")

    with engine.faults(lost):
        hot = engine.run([tokens])[0]
    engine.settle()
    # Both sides leave a master alone for a while after such a failure.
    engine.wait_for(engine.connected)
    return {"cold_cached": cold["cached"], "difference": difference(cold, hot)}


def salt(engine: Engine) -> Findings:
    tokens = prompt(6, 300)
    engine.run([tokens], cache_salt="a")
    engine.forget()
    same = engine.run([tokens], cache_salt="a")[0]["cached"]
    engine.forget()
    other = engine.run([tokens], cache_salt="b")[0]["cached"]
    engine.forget()
    none = engine.run([tokens])[0]["cached"]
    engine.forget()
    return {"same": same, "other": other, "none": none}


def next_turn(engine: Engine) -> Findings:
    first = prompt(7, 200)
    answer = engine.run([first], tokens=90)[0]["tokens"]
    engine.forget()
    turn = [*first, *answer, *prompt(8, 50)]
    hot = engine.run([turn])[0]
    engine.forget()
    engine.side.reset()
    cold = engine.run([turn])[0]
    engine.forget()
    return {
        "hot_cached": hot["cached"],
        "cold_cached": cold["cached"],
        "difference": difference(cold, hot),
    }


def session(engine: Engine) -> Findings:
    """A conversation that ends with its second turn, beside one that goes on."""
    told: list[tuple[str, int]] = []
    end_session = engine.pool.store.end_session

    def ends(name: str) -> int:
        told.append((name, end_session(name)))
        return told[-1][1]

    def turn(tokens: list[int], **said: Any) -> dict[str, Any]:
        asked = greedy(4)
        asked.extra_args = {"kv_transfer_params": {"moonpool": said}}
        (output,) = engine.llm.generate([{"prompt_token_ids": tokens}], asked, use_tqdm=False)
        engine.forget()
        return read(output)

    vars(engine.pool)["end_session"] = ends
    try:
        first = prompt(15, 200)
        more = [*first, *turn(first, session="chat")["tokens"], *prompt(16, 60)]
        turn(prompt(17, 200), session="other")
        before = list(told)
        last = turn(more, session="chat", end_session=True)
        engine.wait_for(lambda: bool(told))
    finally:
        del vars(engine.pool)["end_session"]
    again = engine.run([more])[0]
    engine.forget()
    return {
        "before": before,
        "told": told,
        "last_cached": last["cached"],
        "again_cached": again["cached"],
        "difference": difference(last, again),
        "other": end_session("other"),
    }


def many_at_once(engine: Engine) -> Findings:
    base = prompt(9, 200)
    prompts = [[*base[: 60 + 20 * n], *prompt(20 + n, 70)] for n in range(8)]
    cold = engine.run(prompts)
    engine.forget()
    hot = engine.run(prompts)
    engine.forget()
    return {
        "cached": [one["cached"] for one in hot],
        "lengths": [len(one) for one in prompts],
        "difference": max(difference(a, b) for a, b in zip(cold, hot, strict=True)),
    }


def abort_while_loading(engine: Engine) -> Findings:
    from vllm import SamplingParams

    tokens = prompt(10, 300)
    cold = engine.run([tokens])[0]
    engine.forget()
    params = SamplingParams(temperature=0, max_tokens=4, detokenize=False)
    with engine.held():
        internal = engine.llm.llm_engine.add_request("x", {"prompt_token_ids": tokens}, params)
        engine.wait_for(lambda: engine.side._loads.loading == 1)
        engine.llm.llm_engine.abort_request([internal or "x"], internal=True)
        for _ in range(5):
            engine.core.step_fn()
        held = len(engine.scheduler.requests)
    engine.settle()
    hot = engine.run([tokens])[0]
    engine.forget()
    return {
        "held": held,
        "left": len(engine.scheduler.requests),
        "hot_cached": hot["cached"],
        "difference": difference(cold, hot),
    }


def prompt_logprobs_read_nothing(engine: Engine) -> Findings:
    from vllm import SamplingParams

    tokens = prompt(11, 200)
    engine.run([tokens])
    engine.forget()
    before = len(engine.pool.gets)
    params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=1, detokenize=False)
    engine.llm.generate([{"prompt_token_ids": tokens}], params, use_tqdm=False)
    engine.forget()
    return {"gets": len(engine.pool.gets) - before}


def reset(engine: Engine) -> Findings:
    tokens = prompt(12, 300)
    engine.run([tokens])
    engine.settle()
    objects = engine.pool.status().objects
    assert engine.llm.reset_prefix_cache(reset_connector=True)
    cached = engine.run([tokens])[0]["cached"]
    engine.forget()
    return {"cached": cached, "kept": engine.pool.status().objects >= objects}


def facts(engine: Engine) -> Findings:
    """What holds of the engine as a whole, at the end."""
    from vllm.utils.hashing import sha256
    from vllm.v1.core import kv_cache_utils

    tokens = [(i * 7) % 200 + 3 for i in range(128)]
    names = ("saves", "loads", "load_bytes", "hit_tokens", "loads_failed")
    seconds = {m.name: m for m in engine.llm.get_metrics()}["vllm:moonpool_load_seconds"]
    return {
        "recompute": engine.scheduler.recompute_kv_load_failures,
        "delivery": getattr(engine.scheduler, "requires_kv_delivery", False),
        "hash": kv_cache_utils.hash_block_tokens(sha256, None, tokens, None).hex(),
        "counted": {name: _metric(engine, name) for name in names},
        "load_seconds": seconds.count,
        "errors": _metric(engine, "errors"),
        "leases": engine.pool.status().leases,
    }


# --- a small engine whose requests are preempted, below MultiConnector --------------------------


def shared_by_another_process(engine: Engine) -> Findings:
    found = {"output": engine.run([SHARED])[0]}
    engine.forget()
    return found


def corrupted(engine: Engine) -> Findings:
    """Change a byte in the segment's file, then load the object over TCP."""
    earlier = set(_objects(engine))
    tokens = prompt(13, 300)
    cold = engine.run([tokens])[0]
    engine.forget()
    victim = next(value for name, value in _objects(engine).items() if name not in earlier)
    (path,) = Path(os.environ["TEST_SEGMENTS"]).glob("**/*.seg")
    with path.open("r+b") as file:
        file.seek(path.read_bytes().index(victim) + 100)
        file.write(bytes([victim[100] ^ 0xFF]))
    hot = engine.run([tokens])[0]
    engine.forget()
    engine.side._failed.clear()
    again = engine.run([tokens])[0]
    engine.forget()
    return {
        "difference": max(difference(cold, hot), difference(cold, again)),
        "again_cached": again["cached"],
        "corrupt": _metric(engine, "corrupt_objects"),
    }


def preemption(engine: Engine) -> Findings:
    """After preemptions every object of the pool must hold what a calm run computes."""
    prompts = [prompt(40 + n, 130) for n in range(8)]
    engine.side.reset()
    engine.pool.put_delay_s = 0.02
    outputs = engine.run(prompts, tokens=100)
    engine.pool.put_delay_s = 0.0
    engine.forget()
    stormy = _objects(engine)
    preempted = {m.name: m for m in engine.llm.get_metrics()}["vllm:num_preemptions"].value
    engine.side.reset()
    alone = []
    for tokens, output in zip(prompts, outputs, strict=True):
        alone.append(engine.run([tokens], tokens=100)[0])
        engine.forget()
        engine.run([[*tokens, *output["tokens"]]], tokens=1)
        engine.forget()
    calm = _objects(engine)
    common = sorted(set(stormy) & set(calm))
    worst = max(float(np.abs(_floats(stormy[name]) - _floats(calm[name])).max()) for name in common)
    return {
        "preempted": preempted,
        "objects": len(stormy),
        "compared": len(common),
        "worst": worst,
        "difference": max(difference(a, b) for a, b in zip(outputs, alone, strict=True)),
    }


def _metric(engine: Engine, name: str) -> int:
    values = {m.name: m for m in engine.llm.get_metrics()}
    return int(values[f"vllm:moonpool_{name}"].value)


def _objects(engine: Engine) -> dict[bytes, bytes]:
    namespace = engine.side.namespace
    keys = [one.key for one in engine.pool.list(namespace=namespace)]
    return {split(key)[1]: engine.pool.get(key) for key in keys}


def _floats(content: bytes) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.frombuffer(content, np.float32)


def counted(engine: Engine) -> Findings:
    return {name: _metric(engine, name) for name in ("saves", "errors")}


# --- an engine with another block size ----------------------------------------------------------


def another_block_size(engine: Engine) -> Findings:
    cached = engine.run([SHARED])[0]["cached"]
    engine.forget()
    again = engine.run([SHARED])[0]["cached"]
    engine.forget()
    return {"cached": cached, "again": again}


def node_killed(engine: Engine) -> Findings:
    """The last thing tried: the pool's bytes are gone, at once and for good."""
    tokens = prompt(14, 300)
    cold = engine.run([tokens])[0]
    engine.forget()
    os.kill(int(os.environ["TEST_NODE_PID"]), signal.SIGKILL)
    hot = engine.run([tokens])[0]
    engine.forget()
    return {"difference": difference(cold, hot)}


MULTI = {
    "kv_connector": "MultiConnector",
    "kv_role": "kv_both",
    "kv_load_failure_policy": "recompute",
    "kv_connector_extra_config": {
        "connectors": [
            {
                "kv_connector": "MoonpoolConnector",
                "kv_role": "kv_both",
                "kv_connector_extra_config": {"object_tokens": OBJECT, "lookup_wait_ms": 2000},
            }
        ]
    },
}

GROUPS: dict[str, tuple[dict[str, Any], list[Callable[[Engine], Findings]]]] = {
    "plain": (
        {},
        [
            shared,
            full_prompt,
            local_hit_inside_an_object,
            failures,
            master_lost,
            salt,
            many_at_once,
            abort_while_loading,
            prompt_logprobs_read_nothing,
            next_turn,
            session,
            reset,
            facts,
        ],
    ),
    "small": (
        {"transfer": MULTI, "num_gpu_blocks_override": 20, "max_model_len": 512},
        [shared_by_another_process, corrupted, preemption, counted],
    ),
    "stranger": ({"block_size": 2 * BLOCK}, [another_block_size, node_killed]),
}


def main(group: str, model: str, output: str) -> None:
    """Run a group of scenarios on one engine; a scenario that raises does not end the others."""
    options, scenarios = GROUPS[group]
    ways = ("tcp",) if group == "small" else ("shm", "tcp")
    store = Store.connect(os.environ["TEST_MASTER"], name=group, transports=ways)
    engine = Engine(Path(model), store, **options)
    findings: Findings = {}
    for scenario in scenarios:
        try:
            findings[scenario.__name__] = scenario(engine)
        except Exception:  # noqa: BLE001 - reported by the test
            findings[scenario.__name__] = {"raised": traceback.format_exc()}
    Path(output).write_text(json.dumps(findings))


if __name__ == "__main__":
    main(*sys.argv[1:4])
