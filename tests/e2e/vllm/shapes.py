"""Runs models of other shapes, each on vLLM alone and then with a pool, in one process:
``python -m tests.e2e.vllm.shapes FOLDER OUTPUT`` writes one JSON of findings by model.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from vllm import LLM
from vllm.distributed.kv_transfer import ensure_kv_transfer_shutdown

from moonpool.client.store import Store
from moonpool.core.keys import split
from moonpool.errors import ChecksumError
from moonpool.vllm import objects
from tests.e2e.vllm import models
from tests.e2e.vllm.driver import OBJECT, SETTINGS, Engine, generate, prompt
from tests.e2e.vllm.logprobs import difference

Findings = dict[str, Any]

SHARED, WHOLE, SHORT = prompt(1, 300), prompt(2, 320), prompt(3, 130)
WINDOW = 80
"""Tokens: three blocks. The other model's is shorter than a block."""


def plain(model: Path, **options: Any) -> list[Any]:
    """Return what vLLM without a connector answers, to one prompt after the other."""
    llm = LLM(str(model), **{**SETTINGS, **options})
    changed = [(SHARED[0] + 1) % 127, *SHARED[1:]]
    answers = []
    for tokens in (SHARED, WHOLE, SHORT, turn(SHARED), changed):
        answers += generate(llm, [tokens], 4)
        assert llm.reset_prefix_cache()
    llm.llm_engine.engine_core.shutdown()
    del llm
    gc.collect()
    return answers


def turn(tokens: list[int]) -> list[int]:
    """Return a prompt that goes on where another ended."""
    return [*tokens, *prompt(4, 100)]


def windows(engine: Engine, answers: list[Any]) -> Findings:
    """Of what a window has left nothing is stored, looked up or loaded."""
    found: Findings = {"sensitive": difference(answers[0], answers[4])}
    for name, tokens, expected in zip(
        ("shared", "whole", "short"), (SHARED, WHOLE, SHORT), answers, strict=False
    ):
        cold = engine.run([tokens])[0]
        engine.forget()
        engine.pool.gets.clear()
        hot = engine.run([tokens])[0]
        engine.forget()
        found[name] = {
            "cached": [cold["cached"], hot["cached"]],
            "difference": max(difference(expected, cold), difference(expected, hot)),
            "loaded": sorted(_parts(engine, [key for keys in engine.pool.gets for key in keys])),
        }
    found["stored"] = _sizes(engine, SHARED)
    found |= {"turn": next_turn(engine, answers[3]), "failed": failed(engine, answers[0])}
    found["evicted"] = evicted(engine, answers[0])
    values = {m.name: m for m in engine.llm.get_metrics()}
    found["errors"] = int(values["vllm:moonpool_errors"].value)
    return found


def next_turn(engine: Engine, expected: Any) -> Findings:
    """The engine's own hit ends inside an object, the rest comes from the pool."""
    engine.run([turn(SHARED)])
    engine.forget()
    engine.run([SHARED[:200]], 1)
    engine.settle()
    hot = engine.run([turn(SHARED)])[0]
    engine.forget()
    return {"cached": hot["cached"], "difference": difference(expected, hot)}


def failed(engine: Engine, expected: Any) -> Findings:
    """An object is wrong, of either kind of layers: the prompt is computed from its beginning."""
    worst, cached = 0.0, []
    for place in (0, 1):
        calls = iter(range(1000))

        def fail(at: int, calls: Any = calls, place: int = place) -> int | None:
            return ChecksumError.code if next(calls) == place else None

        with engine.faults(fail):
            hot = engine.run([SHARED])[0]
        engine.forget()
        again = engine.run([SHARED])[0]
        engine.forget()
        worst = max(worst, difference(expected, hot), difference(expected, again))
        cached.append(again["cached"])
    return {"difference": worst, "again": cached}


def evicted(engine: Engine, expected: Any) -> Findings:
    """What a window has left is gone from the pool: a hit needs the last objects only."""
    _, window = engine.side._keys.all_of(engine.side.namespace)
    keys = objects.keys_of(window, _names(engine, SHARED)[: 16 * 2])
    gone = engine.pool.remove_batch(keys, force=True)
    hot = engine.run([SHARED])[0]
    engine.forget()
    engine.pool.remove_batch(objects.keys_of(window, _names(engine, SHARED)), force=True)
    none = engine.run([SHARED])[0]
    engine.forget()
    return {
        "gone": gone,
        "cached": [hot["cached"], none["cached"]],
        "difference": max(difference(expected, hot), difference(expected, none)),
    }


def latent(engine: Engine, _answers: list[Any]) -> Findings:
    """vLLM's latent attention on a CPU does not answer the same twice: bytes are compared."""
    saved, loaded = _spy(engine)
    engine.run([SHARED])
    before = {name: _bytes(engine, blocks) for name, blocks in saved.items()}
    engine.forget()
    for tensor in _caches(engine):
        tensor.zero_()
    hot = engine.run([SHARED])[0]
    after = {name: _bytes(engine, blocks) for name, blocks in loaded.items()}
    engine.forget()
    return {
        "cached": hot["cached"],
        "compared": len(after),
        "equal": all(before[name] == content for name, content in after.items()),
        "empty": any(not any(content) for content in after.values()),
    }


def _spy(engine: Engine) -> tuple[dict[bytes, list[int]], dict[bytes, list[int]]]:
    """Return where the objects are that the worker saves and loads, as they come."""
    saved: dict[bytes, list[int]] = {}
    loaded: dict[bytes, list[int]] = {}
    save, load = engine.worker.runner.save, engine.worker.runner.load

    def on_save(jobs: Any, mark: Any) -> None:
        for job in jobs:
            ends = job.counts.cumsum()
            for at, name in enumerate(objects.split_names(job.names)):
                saved[name] = job.block_ids[ends[at] - job.counts[at] : ends[at]].tolist()
        save(jobs, mark)

    def on_load(jobs: Any, mark: Any) -> None:
        for job in jobs:
            base = job.first_position
            for at, name in enumerate(objects.split_names(job.names)):
                first, last = int(job.starts[at]), int(job.ends[at])
                loaded[name] = job.block_ids[first - base : last - base].tolist()
        load(jobs, mark)

    engine.worker.runner.save, engine.worker.runner.load = on_save, on_load
    return saved, loaded


def _caches(engine: Engine) -> list[Any]:
    return list(engine.core.model_executor.driver_worker.worker.model_runner.kv_caches)


def _bytes(engine: Engine, blocks: list[int]) -> bytes:
    """What vLLM's tensors hold in these blocks, read without moonpool's tables."""
    import torch

    rows = [cache[blocks].contiguous().view(torch.uint8) for cache in _caches(engine)]
    return b"".join(row.numpy().tobytes() for row in rows)


def _names(engine: Engine, tokens: list[int]) -> bytes:
    """The names of a prompt's whole objects."""
    from vllm.utils.hashing import sha256
    from vllm.v1.core import kv_cache_utils

    size, last, names = SETTINGS["block_size"], None, []
    for at in range(0, len(tokens) // size * size, size):
        last = kv_cache_utils.hash_block_tokens(sha256, last, tokens[at : at + size], None)
        if (at + size) % OBJECT == 0:
            names.append(objects.digest_of(last))
    return b"".join(names)


def _parts(engine: Engine, keys: list[bytes]) -> list[tuple[int, int]]:
    """Return (part, objects) of keys."""
    spaces = engine.side._keys.all_of(engine.side.namespace)
    counted = [0] * len(spaces)
    for key in keys:
        counted[spaces.index(split(key)[0])] += 1
    return list(enumerate(counted))


def _sizes(engine: Engine, tokens: list[int]) -> list[int]:
    """Return the bytes of a prompt's last whole object, part by part."""
    spaces = engine.side._keys.all_of(engine.side.namespace)
    (name,) = objects.split_names(_names(engine, tokens)[-16:])
    return [len(engine.pool.get(objects.keys_of(space, name)[0])) for space in spaces]


def _latent_options() -> dict[str, Any]:
    """What latent attention takes on this processor."""
    import torch

    amx = torch.cpu._is_amx_tile_supported()
    return {"dtype": "bfloat16"} if amx else {"block_size": 16}


Build = Callable[[Path], Path]
SHAPES: dict[str, tuple[Build, Callable[[Engine, list[Any]], Findings], dict[str, Any]]] = {
    "gemma3": (lambda folder: models.gemma3(folder, WINDOW), windows, {}),
    "gpt_oss": (lambda folder: models.gpt_oss(folder, WINDOW // 4), windows, {}),
    "deepseek": (models.deepseek, latent, _latent_options()),
}


def main(folder: str, output: str) -> None:
    """Run all shapes, each with a name of its own in the pool."""
    findings: Findings = {}
    for name, (build, scenario, options) in SHAPES.items():
        model = build(Path(folder))
        answers = [] if scenario is latent else plain(model, **options)
        store = Store.connect(os.environ["TEST_MASTER"], name=name, transports=("shm", "tcp"))
        # An engine in this process before it has left its worker's connector.
        ensure_kv_transfer_shutdown()
        engine = Engine(model, store, **options)
        findings[name] = scenario(engine, answers)
        engine.llm.llm_engine.engine_core.shutdown()
        del engine
        gc.collect()
        store.close()
    Path(output).write_text(json.dumps(findings))


if __name__ == "__main__":
    main(*sys.argv[1:3])
