"""A real engine below a pool whose memory is smaller than what it serves; run by ``test_disk``:
``python -m tests.e2e.vllm.on_disk MASTER MODEL OUTPUT``."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

from moonpool.client.store import Store
from tests.e2e.vllm.driver import Engine, prompt
from tests.e2e.vllm.logprobs import difference

LENGTH, FIRSTS, OTHERS = 300, 2, 60
DEADLINE_S = 60.0


def until(check: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not check():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def serve(master: str, model: Path) -> dict[str, object]:
    """Serve prompts until the first are on the disk only, then those again."""
    with Store.connect(master, timeout_s=10.0) as store:
        engine = Engine(model, store)
        firsts = [prompt(i, LENGTH) for i in range(FIRSTS)]
        cold = [engine.run([tokens])[0] for tokens in firsts]
        engine.forget()
        known = {info.key for info in store.list()}
        until(lambda: all(store.stat(key).disk for key in known))
        for i in range(OTHERS):
            engine.run([prompt(100 + i, LENGTH)], tokens=1)
        engine.forget()
        # The first to come are the first to leave memory.
        until(lambda: not any(store.stat(key).segments for key in known))
        before = store.status().counters.get("promotions", 0)
        hot = [engine.run([tokens])[0] for tokens in firsts]
        engine.forget()
        return {
            "objects": len(known),
            "cold_cached": [each["cached"] for each in cold],
            "hot_cached": [each["cached"] for each in hot],
            "difference": max(difference(*pair) for pair in zip(cold, hot, strict=True)),
            "promotions": store.status().counters.get("promotions", 0) - before,
        }


if __name__ == "__main__":
    Path(sys.argv[3]).write_text(json.dumps(serve(sys.argv[1], Path(sys.argv[2]))))
