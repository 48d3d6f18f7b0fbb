"""KV events of what this engine stores in the pool and of what it learns is gone."""

from __future__ import annotations

from types import ModuleType
from types import SimpleNamespace as Bag
from typing import Any

import pytest

from moonpool.vllm import pool_events
from moonpool.vllm.jobs import SaveDone
from moonpool.vllm.pool_events import PoolEvents
from tests.unit.vllm.engine import BLOCK, STRIDE, SchedulerOnly
from tests.unit.vllm.fakes import FakeRequest


class Request(FakeRequest):
    """With what vLLM's events say of a request."""

    lora_request: Any = None
    cache_salt: str | None = None
    prompt_embeds: Any = None
    mm_features: tuple[Any, ...] = ()

    @property
    def all_token_ids(self) -> list[int]:
        return self.tokens


@pytest.fixture
def side(connector: ModuleType) -> SchedulerOnly:
    made = SchedulerOnly()
    made.side._saves.events = PoolEvents(BLOCK, STRIDE)
    made.side._known.gone = made.side._saves.events.gone
    return made


def external(hashes: list[bytes]) -> list[int]:
    """As vLLM publishes them unless it is told otherwise."""
    return [int.from_bytes(each, "big") & ((1 << 64) - 1) for each in hashes]


def events(side: SchedulerOnly) -> PoolEvents:
    found = side.side._saves.events
    assert found is not None
    return found


def save(side: SchedulerOnly, tokens: int = 20, code: int = 0) -> Request:
    request = Request("r", range(tokens), BLOCK)
    side.side.on_new_request(request)
    (job,) = side.save_step(request, tokens, list(range(1, 17)))
    assert events(side).take() == []
    side.done(job, code)
    return request


def test_each_object_that_was_stored_is_one_event(side: SchedulerOnly) -> None:
    request = save(side)
    stored = events(side).take()
    hashes = external(request.block_hashes)
    assert [each.block_hashes for each in stored] == [hashes[0:2], hashes[2:4], hashes[4:5]]
    assert [each.parent_block_hash for each in stored] == [None, hashes[1], hashes[3]]
    assert [each.token_ids for each in stored] == [
        list(range(8)),
        list(range(8, 16)),
        list(range(16, 20)),
    ]
    assert {(each.medium, each.block_size) for each in stored} == {("CPU", BLOCK)}
    assert events(side).take() == []


def test_what_failed_or_was_there_already_is_not_published(side: SchedulerOnly) -> None:
    save(side, code=-705)
    assert events(side).take() == []


def test_what_a_lookup_finds_missing_is_removed(side: SchedulerOnly) -> None:
    request = save(side)
    events(side).take()
    side.clock.now += 1
    again = Request("s", request.tokens, BLOCK)
    side.side.on_new_request(again)
    assert side.side.matched_tokens(again, 0) == 0
    (removed,) = events(side).take()
    # The tail's name stands for other lengths as well: nothing is learned of it.
    assert removed.block_hashes == external(request.block_hashes[:4])
    assert removed.medium == "CPU"


def test_a_reset_removes_all(side: SchedulerOnly) -> None:
    request = save(side)
    events(side).take()
    side.side.reset()
    (removed,) = events(side).take()
    assert removed.block_hashes == external(request.block_hashes)


def test_salt_and_adapter_are_named(side: SchedulerOnly) -> None:
    request = Request("r", range(8), BLOCK)
    request.cache_salt = "salt"
    request.lora_request = Bag(
        adapter_id=3, name="adapter", lora_name="adapter", lora_path="/adapter"
    )
    side.side.on_new_request(request)
    (job,) = side.save_step(request, 8, [1, 2])
    side.done(job)
    (stored,) = events(side).take()
    assert (stored.lora_id, stored.lora_name) == (3, "adapter")
    assert [set(keys) for keys in stored.extra_keys] == [{"adapter", "salt"}, {"adapter"}]


def test_what_is_kept_is_bounded(side: SchedulerOnly, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_events, "PUBLISHED_MAX", 2)
    request = save(side)
    events(side).take()
    events(side).gone([each[:16] for each in request.block_hashes])
    (removed,) = events(side).take()
    assert removed.block_hashes == external(request.block_hashes[2:])


def test_a_job_nobody_knows_publishes_nothing() -> None:
    made = PoolEvents(BLOCK, STRIDE)
    made.saved(SaveDone(7, (0,)))
    made.gone([b"x" * 16])
    assert made.take() == []


def test_events_are_wanted_where_vllm_publishes_some() -> None:
    assert not pool_events.wanted(Bag())
    assert not pool_events.wanted(Bag(kv_events_config=None))
    assert not pool_events.wanted(Bag(kv_events_config=Bag(enable_kv_cache_events=False)))
    assert pool_events.wanted(Bag(kv_events_config=Bag(enable_kv_cache_events=True)))
