"""Both sides together, in vLLM's order of calls: what one engine saves another loads."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator

import pytest

from tests.unit.vllm.engine import BLOCK, Engine, truth
from tests.unit.vllm.fakes import FakePool, FakeRequest


@pytest.fixture
def pool() -> FakePool:
    return FakePool()


@pytest.fixture
def engine(pool: FakePool) -> Iterator[Engine]:
    made = Engine(pool=pool)
    yield made
    made.close()


@pytest.fixture
def other(pool: FakePool) -> Iterator[Engine]:
    made = Engine(pool=pool)
    yield made
    made.close()


def run(engine: Engine, req: FakeRequest, chunk: int = 1 << 30, decode: int = 0) -> int:
    """Serve a request to its end; return the tokens that came from the pool."""
    tokens = engine.add(req)
    engine.settle()
    compute(engine, req, chunk, decode)
    engine.finish(req)
    engine.settle()
    return tokens


def compute(engine: Engine, req: FakeRequest, chunk: int = 1 << 30, decode: int = 0) -> None:
    while req.num_computed_tokens < req.num_prompt_tokens:
        engine.step({req.request_id: min(chunk, req.num_prompt_tokens - req.num_computed_tokens)})
    for token in range(decode):
        req.append(10_000 + token)
        engine.allocate(req, -(-req.num_tokens // BLOCK))
        engine.step({req.request_id: 1})


def holds_the_truth(engine: Engine, req: FakeRequest, blocks: int) -> bool:
    table = engine.tables[req.request_id]
    return all(
        engine.memory.read(table[at]) == truth(req.block_hashes[at]).tobytes()
        for at in range(blocks)
    )


@pytest.mark.parametrize("chunk", [3, 8, 1 << 30])
def test_another_engine_loads_what_one_saved(engine: Engine, other: Engine, chunk: int) -> None:
    assert run(engine, FakeRequest("a", range(30), BLOCK), chunk, decode=9) == 0
    engine.check_pool(FakeRequest("t", [*range(30), *range(10_000, 10_009)], BLOCK))
    req = FakeRequest("b", range(30), BLOCK)
    assert other.add(req) == 28
    other.settle()
    assert other.completed == ["b"]
    assert holds_the_truth(other, req, 7)


def test_the_next_turn_of_a_conversation_finds_the_last_answer(
    engine: Engine, other: Engine
) -> None:
    run(engine, FakeRequest("a", range(21), BLOCK), decode=14)
    req = FakeRequest("b", [*range(21), *range(10_000, 10_014), *range(500, 530)], BLOCK)
    assert other.add(req) == 32
    other.settle()
    assert holds_the_truth(other, req, 8)


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_a_failed_load_is_recomputed_and_served(
    engine: Engine, other: Engine, missing: int
) -> None:
    run(engine, FakeRequest("a", range(24), BLOCK))
    req = FakeRequest("b", range(24), BLOCK)
    tokens = other.side.matched_tokens(req, 0)
    assert tokens == 24
    del engine.pool.objects[engine.key(req.block_hashes[2 * missing + 1])]
    other.add(req)
    other.settle()
    assert req.num_computed_tokens == missing * 8
    compute(other, req)
    assert holds_the_truth(other, req, 6)
    other.finish(req)
    other.settle()
    # The gap is filled again.
    assert other.check_pool(req) == 3


def test_an_abort_while_loading_frees_the_blocks_after_the_load(
    engine: Engine, other: Engine
) -> None:
    run(engine, FakeRequest("a", range(24), BLOCK))
    gate = other.pool.gate = threading.Event()
    req = FakeRequest("b", range(24), BLOCK)
    assert other.add(req) == 24
    other.step()
    (load,) = other.worker.runner._loader._open.values()  # type: ignore[union-attr]
    while not load.working:
        threading.Event().wait(0.001)
    other.finish(req)
    other.step()
    assert other.completed == []
    assert other.block_pool.held
    gate.set()
    other.settle()
    assert other.completed == ["b"]
    assert other.check_pool(req) == 3


def test_preempted_requests_leave_the_right_bytes(engine: Engine) -> None:
    """Blocks are reused at once after a preemption, save those that a save still reads."""
    gate = engine.pool.gate = threading.Event()
    first = FakeRequest("a", range(32), BLOCK)
    engine.add(first)
    engine.step({"a": 32})
    table = list(engine.tables["a"])
    engine.preempt(first)
    assert engine.block_pool.held == table
    second = FakeRequest("b", range(500, 532), BLOCK)
    engine.add(second)
    assert not set(engine.tables["b"]) & set(table)
    engine.step({"b": 32})
    gate.set()
    engine.settle()
    assert engine.check_pool(first, second) == 8
    engine.pool.gate = None
    engine.admit(first)
    engine.settle()
    assert first.num_computed_tokens == 32
    assert holds_the_truth(engine, first, 8)


def test_the_same_id_again_while_saves_are_in_progress(engine: Engine) -> None:
    """Request-id ABA across saves: jobs are known by number, not by request."""
    gate = engine.pool.gate = threading.Event()
    first = FakeRequest("same", range(16), BLOCK)
    engine.add(first)
    engine.step({"same": 16})
    engine.finish(first)
    second = FakeRequest("same", range(700, 716), BLOCK)
    engine.add(second)
    engine.step({"same": 16})
    gate.set()
    engine.finish(second)
    engine.settle()
    assert engine.check_pool(first, second) == 4
    assert engine.block_pool.held == []


def test_an_engine_without_a_master_serves_and_joins_later(engine: Engine, other: Engine) -> None:
    other.link.pool = None
    engine.pool.down = True
    assert run(engine, FakeRequest("a", range(24), BLOCK)) == 0
    assert engine.block_pool.held == []
    engine.pool.down = False
    engine.clock.now += 60
    assert run(engine, FakeRequest("b", range(24), BLOCK)) == 0
    assert run(other, FakeRequest("c", range(24), BLOCK)) == 0
    other.link.pool = other.pool
    assert run(other, FakeRequest("d", range(24), BLOCK)) == 24


def test_a_master_that_dies_in_between_costs_recomputes_only(engine: Engine) -> None:
    req = FakeRequest("a", range(24), BLOCK)
    run(engine, req)
    again = FakeRequest("b", range(24), BLOCK)
    assert engine.add(again) == 24
    engine.pool.down = True
    engine.settle()
    assert again.num_computed_tokens == 0
    compute(engine, again)
    engine.finish(again)
    engine.settle()
    assert engine.completed == ["b"]


@pytest.mark.parametrize("seed", range(6))
def test_many_requests_in_any_order_keep_every_promise(pool: FakePool, seed: int) -> None:
    """Shared prefixes, chunks, preemptions, aborts, losses: bytes right, blocks given back."""
    rng = random.Random(seed)
    engines = [Engine(pool=pool, blocks=160) for _ in range(2)]
    texts = [[*range(t * 100, t * 100 + rng.randrange(8, 60))] for t in range(4)]
    seen: list[FakeRequest] = []
    for turn in range(40):
        engine = rng.choice(engines)
        base = rng.choice(texts)
        tokens = [*base[: rng.randrange(4, len(base) + 1)], *range(turn, turn + rng.randrange(9))]
        req = FakeRequest(f"r{rng.randrange(5)}-{turn}", tokens, BLOCK)
        seen.append(req)
        engine.add(req)
        if pool.objects and rng.random() < 0.3:
            del pool.objects[rng.choice(sorted(pool.objects))]
        if rng.random() < 0.2:
            engine.finish(req)
            engine.settle()
            continue
        engine.settle()
        if rng.random() < 0.3 and req.num_computed_tokens < req.num_prompt_tokens:
            engine.step({req.request_id: req.num_prompt_tokens - req.num_computed_tokens})
            engine.preempt(req)
            engine.admit(req)
            engine.settle()
        compute(engine, req, rng.choice([3, 8, 100]), rng.randrange(12))
        blocks = min(req.num_computed_tokens // BLOCK, len(req.block_hashes))
        assert holds_the_truth(engine, req, blocks)
        engine.finish(req)
        if rng.random() < 0.5:
            engine.settle()
    for engine in engines:
        engine.settle()
        assert engine.block_pool.held == []
        assert engine.side._loads.loading == 0
        engine.close()
    assert engines[0].check_pool(*seen) > 0
    assert not any(pool.leases.values())
