"""Prefill and decode engines on one pool while things go wrong at random: whatever happens, each
request completes once per attempt, ends, and its blocks hold the right bytes."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest

from moonpool.errors import NoSpaceError
from tests.unit.vllm.engine import BLOCK, Engine, truth
from tests.unit.vllm.fakes import FakePool, FakeRequest

HOSTILE: list[Any] = [
    "t",
    [],
    {"do_remote_prefill": True},
    {"do_remote_prefill": 1, "transfer_id": "t"},
    {"do_remote_decode": True, "do_remote_prefill": True, "transfer_id": "t"},
    {"do_remote_prefill": True, "transfer_id": "of nobody"},
]


class Story:
    """One seeded run with two engines that prefill and one that decodes."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.pool = FakePool()
        changes = {"share_prefill_tokens": self.rng.choice([0, 16])}
        self.ps = [Engine(pool=self.pool, role="kv_producer", **changes) for _ in range(2)]
        self.d = Engine(pool=self.pool, role="kv_consumer", blocks=96, **changes)
        self.prefills: dict[str, tuple[Engine, FakeRequest]] = {}
        self.seen: list[FakeRequest] = []
        self.count = 0

    def run(self, steps: int) -> None:
        events = (
            *[self.new] * 3,
            *[self.prefill] * 8,
            *[self.step] * 10,
            self.abort_p,
            self.abort_d,
            self.preempt_p,
            self.evict,
            self.pressure,
            self.pass_time,
        )
        for _ in range(steps):
            self.rng.choice(events)()
        self.settle()

    def new(self) -> None:
        if len(self.d.requests) >= 3 or len(self.prefills) >= 4:
            return
        self.count += 1
        rng, name = self.rng, f"r{self.count}"
        start = rng.choice([0, 0, 100])
        tokens = [*range(start, start + rng.choice([8, 16])), *range(rng.randrange(5, 20))]
        transfer = rng.choice([name, "same"])
        if rng.random() < 0.85:
            req = FakeRequest(name, tokens, BLOCK)
            req.kv_transfer_params = {"do_remote_decode": True, "transfer_id": transfer}
            engine = rng.choice(self.ps)
            engine.add(req)
            self.prefills[name] = engine, req
            self.seen.append(req)
        if rng.random() < 0.85:
            req = FakeRequest(name, tokens, BLOCK)
            req.kv_transfer_params = {"do_remote_prefill": True, "transfer_id": transfer}
            if rng.random() < 0.1:
                req.kv_transfer_params = rng.choice(HOSTILE)
            self.d.add(req)
            self.seen.append(req)

    def prefill(self) -> None:
        """Compute some tokens of a prompt; at its end the request is over."""
        ready = [
            name for name, (engine, req) in self.prefills.items() if name not in engine.waiting
        ]
        if not ready:
            return
        name = self.rng.choice(ready)
        engine, req = self.prefills[name]
        left = req.num_prompt_tokens - req.num_computed_tokens
        engine.step({name: min(left, self.rng.choice([3, 4, 8, 12]))} if left > 0 else None)
        if req.num_computed_tokens >= req.num_prompt_tokens:
            req.append(1)
            engine.finish(req)
            del self.prefills[name]

    def step(self) -> None:
        for engine in (*self.ps, self.d):
            engine.step()
        self.finish_some()
        time.sleep(0.0003)

    def finish_some(self) -> None:
        """D computes what did not come, checks all it has, and ends the request."""
        for name, req in list(self.d.requests.items()):
            # One that was aborted goes when its load ends, which may be in a step made here.
            gone = name not in self.d.requests
            if gone or name in self.d.waiting or self.rng.random() < 0.5:
                continue
            self.check(req)
            if req.num_computed_tokens < req.num_tokens:
                self.d.step({name: req.num_tokens - req.num_computed_tokens})
            self.check(req)
            req.append(2)
            self.d.finish(req)

    def check(self, req: FakeRequest) -> None:
        table = self.d.tables[req.request_id]
        for at in range(min(req.num_computed_tokens // BLOCK, len(req.block_hashes))):
            assert self.d.memory.read(table[at]) == truth(req.block_hashes[at]).tobytes()

    def abort_p(self) -> None:
        if self.prefills:
            name = self.rng.choice(list(self.prefills))
            engine, req = self.prefills.pop(name)
            engine.finish(req)

    def abort_d(self) -> None:
        live = [name for name in self.d.requests if name not in self.d.aborted]
        if live:
            self.d.finish(self.d.requests[self.rng.choice(live)])

    def preempt_p(self) -> None:
        ready = [
            (engine, req)
            for name, (engine, req) in self.prefills.items()
            if name not in engine.waiting
        ]
        if ready:
            engine, req = self.rng.choice(ready)
            engine.preempt(req)
            engine.admit(req)

    def evict(self) -> None:
        for key in self.rng.sample(sorted(self.pool.objects), min(2, len(self.pool.objects))):
            self.pool.objects.pop(key, None)

    def pressure(self) -> None:
        self.pool.put_code = self.rng.choice([0, 0, NoSpaceError.code])

    def pass_time(self) -> None:
        seconds = self.rng.choice([0.3, 1.1, 3.0, 6.0])
        for engine in (*self.ps, self.d):
            engine.clock.now += seconds
        self.pool.quiet_s = seconds
        self.pool.notice(late=True)
        self.pool.quiet_s = 0.0

    def settle(self) -> None:
        """Without any P left, and with time passing, everything must come to its end."""
        self.pool.put_code = 0
        for name in list(self.prefills):
            engine, req = self.prefills.pop(name)
            engine.finish(req)
        deadline = time.monotonic() + 20
        while self.d.requests or self.d.side.has_work or any(p.side.has_work for p in self.ps):
            assert time.monotonic() < deadline, "something never ends"
            self.pass_time()
            self.step()
        for engine in (*self.ps, self.d):
            engine.settle()
            # Where the clock runs ahead of the threads, a save may be overdue and still run.
            while engine.side.pins.jobs:
                assert time.monotonic() < deadline, "a save never ends"
                engine.step()
                time.sleep(0.001)
            assert not engine.block_pool.held
            assert engine.side._loads.loading == 0
            assert engine.side.handoffs.count == 0
            assert not engine.side.handoffs._open
            assert engine.worker.tally.take().get("errors", 0) == 0
        self.d.check_pool(*self.seen)

    def close(self) -> None:
        for engine in (*self.ps, self.d):
            engine.close()


@pytest.mark.parametrize("seed", range(40))
def test_whatever_happens_bytes_are_right_and_everything_ends(seed: int) -> None:
    story = Story(seed)
    try:
        story.run(120)
    finally:
        story.close()
