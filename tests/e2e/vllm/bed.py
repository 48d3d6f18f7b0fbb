"""A real engine on a real pool that is made to fail: master and node are processes to kill."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from moonpool.client.store import Store
from tests.e2e.vllm.driver import OBJECT, SETTINGS, Engine, generate, greedy, prompt, read
from tests.integration.processes import Master, Node, eventually, freeze, ready_segments

PROMPT, ANSWER = 300, 8
DEADLINE_S = 2.0
"""Of a load and of a save."""
ENDS_S = 120.0
"""Longest time for a request, on a machine that is busy with other things."""
LONG, LONG_ANSWER, AT_ONCE = 130, 100, 8
"""Prompts that together need more blocks than there are."""

Tokens = list[int]


def plain(model: Path, seeds: int, **options: Any) -> tuple[list[Any], list[Any]]:
    """Return what vLLM without a connector answers: to prompts 0 to ``seeds``, to long ones."""
    from vllm import LLM

    llm = LLM(str(model), **{**SETTINGS, **options})
    answers = generate(llm, [prompt(seed, PROMPT) for seed in range(seeds)], ANSWER)
    long = generate(llm, long_prompts(), LONG_ANSWER)
    llm.llm_engine.engine_core.shutdown()
    del llm
    gc.collect()
    return answers, long


def long_prompts() -> list[Tokens]:
    return [prompt(1000 + n, LONG) for n in range(AT_ONCE)]


def leaks(start: dict[str, int], now: dict[str, int]) -> list[str]:
    """Return of what more is held than at the start, beyond what comes and goes."""
    slack = {"threads": 2, "files": 6, "segments": 0, "mib": 64}
    return [name for name, more in slack.items() if now[name] > start[name] + more]


class Bed:
    """The engine, the pool, the answers of an engine without a pool, and what is held."""

    def __init__(self, model: Path, folder: Path, way: str, **options: Any) -> None:
        """way: how bytes move, tcp or shm."""
        self.plain, self.plain_long = plain(model, 24, **options)
        self._seed, self.way = -1, way
        self.master = Master(folder).start()
        self.node = Node(folder, self.master, "n").start()
        self.probe = Store.connect(self.master.address, name="probe")
        extra = {"object_tokens": OBJECT, "lookup_wait_ms": 2000, "transports": [way]}
        extra["verify_loads"] = True
        extra |= {"load_timeout_s": DEADLINE_S, "save_timeout_s": DEADLINE_S}
        extra |= {"master": self.master.address}
        transfer: dict[str, Any] = {"kv_connector": "MoonpoolConnector", "kv_role": "kv_both"}
        transfer["kv_connector_extra_config"] = extra
        self.engine = Engine(model, None, transfer=transfer, **options)

    def fresh(self) -> tuple[Tokens, Any]:
        """Return a prompt that nobody has seen and vLLM's answer without a pool."""
        self._seed += 1
        return prompt(self._seed, PROMPT), self.plain[self._seed]

    def stored(self) -> tuple[Tokens, Any]:
        """Return a prompt that is in the pool and not in the engine, and the answer."""
        tokens, expected = self.fresh()
        self.engine.run([tokens], ANSWER)
        self.engine.forget()
        self.engine.wait_for(lambda: self._is_stored(tokens))
        return tokens, expected

    def _is_stored(self, tokens: Tokens) -> bool:
        """Whether a short run of the engine hits all whole blocks of a prompt."""
        before = self.count("hit_tokens")
        self.engine.run([tokens], 1)
        self.engine.forget()
        return self.count("hit_tokens") - before >= len(tokens) // OBJECT * OBJECT

    def begin(self, tokens: Tokens) -> str:
        """Give the engine a request; return its internal name."""
        ask = {"prompt_token_ids": tokens}
        added = self.engine.llm.llm_engine.add_request(f"r{self._seed}", ask, greedy(ANSWER))
        return added or f"r{self._seed}"

    def end(self) -> dict[str, Any]:
        """Step until the one request has ended; return its answer."""
        deadline = time.monotonic() + ENDS_S
        while True:
            assert time.monotonic() < deadline, "the request does not end"
            for output in self.engine.llm.llm_engine.step():
                if output.finished:
                    return read(output)

    @contextlib.contextmanager
    def stalled(self) -> Iterator[None]:
        """No byte moves meanwhile: the node is stopped, or copies wait before they begin."""
        if self.way == "tcp":
            node = self.node.process
            freeze(node.pid)
            try:
                yield
            finally:
                # Unless it was killed meanwhile.
                with contextlib.suppress(ProcessLookupError):
                    os.kill(node.pid, signal.SIGCONT)
            return
        gate, pool = threading.Event(), self.engine.worker.runner.link.get()
        get, put = pool.get_pieces, pool.put_pieces
        pool.get_pieces = lambda *args, **kw: gate.wait(ENDS_S) and get(*args, **kw)
        pool.put_pieces = lambda *args, **kw: gate.wait(ENDS_S) and put(*args, **kw)
        try:
            yield
        finally:
            gate.set()
            del pool.get_pieces, pool.put_pieces

    def abandon(self) -> None:
        """End what a case that failed has left."""
        engine = self.engine.llm.llm_engine
        engine.abort_request(list(engine.output_processor.request_states), internal=True)

    def kill(self, who: str) -> None:
        for one in self._daemons(who):
            one.kill()

    def mend(self, who: str) -> None:
        """Start again what was killed; wait until the engine has joined the pool."""
        for one in self._daemons(who):
            one.start()
        eventually("the node is back", lambda: self._ready() == 1, 30)
        self.engine.wait_for(self.engine.connected, 30)
        # A save that failed is followed by a rest.
        self.engine.wait_for(lambda: time.monotonic() > self.engine.side._saves._rest_until)

    def _ready(self) -> int:
        with contextlib.suppress(Exception):
            return ready_segments(self.probe)
        return 0

    def _daemons(self, who: str) -> list[Master | Node]:
        named: dict[str, list[Master | Node]] = {
            "master": [self.master],
            "node": [self.node],
            "all": [self.master, self.node],
        }
        return named[who]

    def count(self, name: str) -> int:
        values = {m.name: m for m in self.engine.llm.get_metrics()}
        return int(values[f"vllm:moonpool_{name}"].value)

    def held(self) -> dict[str, int]:
        """What this process holds of the system: threads, files, mapped segments, MiB."""
        gc.collect()
        maps = Path("/proc/self/maps").read_text().splitlines()
        status = Path("/proc/self/status").read_text()
        (rss,) = [line for line in status.splitlines() if line.startswith("VmRSS")]
        return {
            "threads": len([*Path("/proc/self/task").iterdir()]),
            "files": len([*Path("/proc/self/fd").iterdir()]),
            "segments": len({line.split()[-1] for line in maps if ".seg" in line}),
            "mib": int(rss.split()[1]) >> 10,
        }

    def warm(self) -> dict[str, int]:
        """Open all that is opened once, here and in the probe; return what is held then."""
        self.stored()
        key = next(iter(self.probe.list(namespace=self.engine.side.namespace))).key
        self.probe.get(key)
        return self.held()

    def settled(self, start: dict[str, int]) -> dict[str, int]:
        """Wait until blocks are free again and no more is held than at the start; return what is.

        Connections come and go, so a few files more are no reason to wait.
        """
        self.engine.forget()
        deadline = time.monotonic() + 20
        while True:
            now = self.held()
            if not leaks(start, now) or time.monotonic() > deadline:
                return now
            self.engine.core.step_fn()
            time.sleep(0.05)

    def close(self) -> None:
        self.probe.close()
        self.engine.llm.llm_engine.engine_core.shutdown()
        self.node.__exit__(None, None, None)
        self.master.__exit__(None, None, None)
