"""Conversations that clients name, and what the pool hears of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from moonpool import Store
from moonpool.core.keys import Key, pack
from moonpool.vllm.sessions import WAITING_MAX, SessionBook
from moonpool.vllm.stats import Tally
from tests.unit.vllm.engine import BLOCK, Engine
from tests.unit.vllm.fakes import FakeLink, FakePool, FakeRequest, InlineCourier


@pytest.fixture
def engine() -> Iterator[Engine]:
    made = Engine()
    yield made
    made.close()


def ask(name: str, tokens: int, said: Any) -> FakeRequest:
    request = FakeRequest(name, range(tokens), BLOCK)
    request.kv_transfer_params = {"moonpool": said}
    return request


def run(engine: Engine, request: FakeRequest) -> None:
    engine.add(request)
    engine.step({request.request_id: request.num_tokens - request.num_computed_tokens})
    engine.finish(request)
    engine.settle()


def book_of(pool: Any, tally: Tally) -> SessionBook:
    link: Any = FakeLink(pool)
    return SessionBook(InlineCourier(), link, tally)


def test_the_pool_hears_of_a_session_when_its_blocks_are_there(engine: Engine) -> None:
    request = ask("r", 22, {"session": "talk"})
    run(engine, request)
    full, tail = request.block_hashes[3], request.block_hashes[4]
    assert engine.pool.sessions == [("talk", [engine.key(full), engine.key(tail)])]


def test_a_session_ends_with_its_last_request(engine: Engine) -> None:
    run(engine, ask("r", 16, {"session": "talk", "end_session": True}))
    assert [keys is None for _, keys in engine.pool.sessions] == [False, True]
    assert engine.side.take_stats()["session_objects_released"] == 7


def test_requests_without_a_session_say_nothing(engine: Engine) -> None:
    for said in (None, {}, {"session": 7}, {"session": "x" * 129}, {"end_session": True}, [1]):
        run(engine, ask(f"r{said}", 16, said))
    assert engine.pool.sessions == []
    assert engine.side.take_stats()["params_ignored"] == 4


def test_what_fails_or_is_not_known_does_no_harm(engine: Engine) -> None:
    engine.pool.keeps = False
    run(engine, ask("old", 16, {"session": "talk", "end_session": True}))
    assert engine.pool.sessions == []
    engine.pool.keeps = True
    pool, tally = FakePool(), Tally()
    pool.down = True
    book = book_of(pool, tally)
    book.finished("talk", [], set(), last=True)
    assert "sessions_ended" not in tally.take()


def test_saves_that_never_end_are_not_waited_for_without_end() -> None:
    pool = FakePool()
    book = book_of(pool, Tally())
    for number in range(WAITING_MAX + 10):
        book.finished(f"s{number}", [pack(b"k")], {number}, last=False)
    assert [name for name, _ in pool.sessions] == [f"s{number}" for number in range(10)]
    book.saved(100)
    assert pool.sessions[-1][0] == "s100"


def test_a_real_pool_releases_what_the_session_saved() -> None:
    with Store.local("8MB") as store:
        keys: list[Key] = [pack(bytes([n]) * 16, b"space") for n in range(3)]
        for at, key in enumerate(keys):
            store.put(key, b"x" * 4096, parent=keys[at - 1] if at else None)
        tally = Tally()
        book = book_of(store, tally)
        book.finished("talk", keys[-1:], {5}, last=True)
        assert not store.status().counters.get("sessions_ended")
        book.saved(5)
        assert store.status().counters["session_objects_released"] == 3
        assert tally.take()["session_objects_released"] == 3
