"""Waiting for objects that another process puts, over real connections."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from moonpool import MasterUnreachableError, Store, pack
from moonpool.core.handoffs import claim_of
from moonpool.core.messages import ENDED, FAILED, OPEN, UNHEARD, Awaited, News
from tests.integration.processes import Master, eventually, pool

SPACE = b"N" * 16
KEYS = [pack(i.to_bytes(16, "big"), SPACE) for i in range(8)]
PATIENT_S = 30.0


@pytest.fixture
def master(tmp_path: Path) -> Iterator[Master]:
    with pool(tmp_path) as (running, _):
        yield running


class Asker:
    """Questions of one store and their answers as they come."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.answers: queue.Queue[tuple[str, Awaited | None]] = queue.Queue()

    def ask(self, name: str, first: int = 0, transfer: str = "", wait_s: float = 20.0) -> None:
        self.store.watch(
            KEYS[first:], transfer, wait_s, lambda answer: self.answers.put((name, answer))
        )

    def next(self) -> tuple[str, Awaited | None]:
        return self.answers.get(timeout=PATIENT_S)


def waiting(store: Store, count: int) -> None:
    """Wait until the master has so many questions open."""

    def waits() -> int:
        counters = store.status().counters
        return counters.get("awaits_parked", 0) - counters.get("awaits_ended", 0)

    eventually("the master knows", lambda: waits() == count)


def answers(store: Store) -> bool:
    with contextlib.suppress(MasterUnreachableError):
        store.status()
        return True
    return False


def ask_often(asker: Asker) -> None:
    for _ in range(50):
        asker.ask("any")


def test_one_is_told_as_soon_as_the_other_has_put(master: Master) -> None:
    with Store.connect(master.address) as one, Store.connect(master.address) as other:
        asker = Asker(other)
        asker.ask("first")
        asker.ask("later", first=3)
        waiting(one, 2)
        assert one.put(KEYS[0], b"x")
        assert asker.next() == ("first", Awaited(1))
        asker.ask("next", first=1)
        waiting(one, 2)
        one.put_batch(KEYS[3:5], [b"x", b"y"])
        name, answer = asker.next()
        assert name == "later"
        assert answer is not None
        assert answer.count in (1, 2)
        one.put_batch(KEYS[1:3], [b"x", b"y"])
        name, answer = asker.next()
        assert name == "next"
        assert answer is not None
        assert answer.count in (1, 2, 4)


def test_news_reach_who_waits(master: Master) -> None:
    with Store.connect(master.address) as other:
        asker = Asker(other)
        with Store.connect(master.address) as one:
            assert one.awaits
            one.tell([News("t", 1, OPEN), News("u", 2, OPEN)])
            asker.ask("t", transfer="t")
            asker.ask("u", transfer="u")
            waiting(one, 2)
            one.tell([News("t", 1, ENDED)])
            assert asker.next() == ("t", Awaited(0, ENDED))
        # The last connection of the engine is gone.
        assert asker.next() == ("u", Awaited(0, FAILED))


def test_a_wait_has_an_end(master: Master) -> None:
    with Store.connect(master.address) as store:
        asker = Asker(store)
        asker.ask("short", wait_s=0.2)
        assert asker.next() == ("short", Awaited(0, UNHEARD))
        asker.ask("never", wait_s=0.0)
        assert asker.next() == ("never", Awaited(0, UNHEARD))


def test_without_a_master_the_answer_is_none_and_later_ones_come_again(master: Master) -> None:
    with Store.connect(master.address) as store:
        asker = Asker(store)
        asker.ask("lost")
        waiting(store, 1)
        master.kill()
        assert asker.next() == ("lost", None)
        asker.ask("away")
        assert asker.next() == ("away", None)
        master.start()
        eventually("the master is found again", lambda: answers(store), PATIENT_S)
        asker.ask("back", wait_s=0.1)
        assert asker.next() == ("back", Awaited(0))


def test_closing_answers_everything(master: Master) -> None:
    store = Store.connect(master.address)
    asker = Asker(store)
    for _ in range(100):
        asker.ask("any")
    store.close()
    assert {asker.next() for _ in range(100)} == {("any", None)}
    asker.ask("late")
    assert asker.next() == ("late", None)


def test_many_threads_ask_at_once(master: Master) -> None:
    with Store.connect(master.address) as one, Store.connect(master.address) as other:
        asker = Asker(other)
        threads = [threading.Thread(target=ask_often, args=(asker,)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        waiting(one, 400)
        one.put(KEYS[0], b"x")
        assert [asker.next() for _ in range(400)] == [("any", Awaited(1))] * 400
        waiting(one, 0)


@pytest.mark.parametrize("claimed", [0, 1, 5, 8])
def test_what_others_compute_is_found(master: Master, claimed: int) -> None:
    with Store.connect(master.address) as one, Store.connect(master.address) as other:
        one.put(KEYS[0], b"x")
        one.tell([News(claim_of(key), 1, OPEN) for key in KEYS[1:claimed]])
        assert other.coming(KEYS) == max(claimed, 1)
        one.tell([News(claim_of(key), 1, ENDED) for key in KEYS[1:claimed]])
        assert other.coming(KEYS) == 1
