"""Handoffs: who waits is answered once, by whatever comes first."""

from __future__ import annotations

from typing import Any

import pytest

from moonpool.core import messages as m
from tests.unit.core.driver import Driver, block

KEYS: list[bytes] = [block(n) for n in range(4)]


class Waiting(Driver):
    """A driver that keeps what parked questions were answered."""

    def __init__(self, **config: Any) -> None:
        super().__init__(**config)
        self.answered: dict[int, m.Awaited] = {}
        self.mount()

    def ask(self, request: Any, peer: str = "client") -> m.Reply | None:
        outcome = self.master.handle(request, peer, self.now)
        self.master.validate_state()
        for number, answer in outcome.answers:
            assert number not in self.answered
            self.answered[number] = answer
        self.parked = outcome.parked
        return outcome.reply

    def park(self, *keys: bytes, transfer: str = "", wait_s: float = 5.0, peer: str = "d") -> int:
        assert self.ask(m.Await(list(keys), transfer, wait_s), peer) is None
        return self.parked

    def now_there(self, *keys: bytes, transfer: str = "", wait_s: float = 5.0) -> m.Awaited:
        return self.expect(m.Awaited, m.Await(list(keys), transfer, wait_s), "d")

    def tell(self, state: int, transfer: str = "t", number: int = 1, peer: str = "p") -> None:
        self.expect(m.Done, m.Tell([m.News(transfer, number, state)]), peer)


@pytest.fixture
def driver() -> Waiting:
    return Waiting()


def test_what_is_there_is_answered_at_once(driver: Waiting) -> None:
    driver.put(KEYS[0], KEYS[1], KEYS[3])
    assert driver.now_there(*KEYS) == m.Awaited(2)


def test_a_key_that_is_put_answers_who_waits_for_it(driver: Waiting) -> None:
    first, second = driver.park(*KEYS), driver.park(KEYS[1])
    driver.put(KEYS[0])
    assert driver.answered == {first: m.Awaited(1)}
    driver.put(KEYS[1])
    assert driver.answered[second] == m.Awaited(1)


def test_objects_may_come_in_any_order(driver: Waiting) -> None:
    number = driver.park(*KEYS)
    driver.put(KEYS[1])
    driver.put(KEYS[2])
    assert not driver.answered
    driver.put(KEYS[0])
    assert driver.answered == {number: m.Awaited(3)}


def test_a_wait_ends_when_its_time_is_over(driver: Waiting) -> None:
    number = driver.park(*KEYS, wait_s=5)
    driver.tick(4.9)
    assert not driver.answered
    driver.tick(0.1)
    assert driver.answered == {number: m.Awaited(0)}


def test_no_wait_is_longer_than_the_limit() -> None:
    driver = Waiting(await_s_max=2.0)
    driver.park(*KEYS, wait_s=1e300)
    driver.tick(2.0)
    assert len(driver.answered) == 1


@pytest.mark.parametrize("state", [m.ENDED, m.FAILED])
def test_the_end_of_a_handoff_answers_who_waits(driver: Waiting, state: int) -> None:
    driver.tell(m.OPEN)
    number = driver.park(*KEYS, transfer="t")
    stranger = driver.park(*KEYS, transfer="u")
    driver.tell(state)
    assert driver.answered == {number: m.Awaited(0, state)}
    assert driver.now_there(*KEYS, transfer="t").state == state
    driver.put(KEYS[0])
    assert driver.answered[stranger].count == 1


def test_a_peer_that_is_gone_and_does_not_come_back_has_failed(driver: Waiting) -> None:
    driver.tell(m.OPEN)
    driver.tell(m.OPEN, "u", peer="q")
    number = driver.park(*KEYS, transfer="t")
    driver.gone("p")
    driver.gone("q")
    driver.tick(1.9)
    assert not driver.answered
    driver.tell(m.OPEN, "u", peer="q")
    driver.tick(0.2)
    assert driver.answered == {number: m.Awaited(0, m.FAILED)}
    assert driver.now_there(*KEYS, transfer="u", wait_s=0).state == m.OPEN


def test_signs_of_life_are_seen_in_the_answer(driver: Waiting) -> None:
    driver.tell(m.OPEN)
    number = driver.park(*KEYS, transfer="t", wait_s=5)
    driver.tick(3)
    driver.tell(m.OPEN)
    driver.tick(2)
    assert driver.answered == {number: m.Awaited(0, m.OPEN, 2.0)}


def test_a_handoff_is_open_while_anyone_works_for_it(driver: Waiting) -> None:
    driver.tell(m.OPEN, peer="p")
    driver.tell(m.OPEN, peer="q")
    driver.tell(m.FAILED, peer="p")
    driver.tell(m.ENDED, peer="stranger")
    number = driver.park(*KEYS, transfer="t")
    driver.tell(m.ENDED, peer="q")
    assert driver.answered == {number: m.Awaited(0, m.ENDED)}


def test_an_id_may_be_used_again(driver: Waiting) -> None:
    driver.tell(m.OPEN)
    driver.tell(m.FAILED)
    driver.tell(m.OPEN, number=2)
    number = driver.park(*KEYS, transfer="t")
    driver.put(KEYS[0])
    assert driver.answered == {number: m.Awaited(1, m.OPEN)}


def test_an_engine_that_says_nothing_any_more_has_failed(driver: Waiting) -> None:
    driver.tell(m.OPEN)
    driver.tick(59)
    number = driver.park(*KEYS, transfer="t", wait_s=30)
    driver.tick(2)
    assert driver.answered == {number: m.Awaited(0, m.FAILED)}
    driver.tick(61)
    assert driver.now_there(*KEYS, transfer="t", wait_s=0) == m.Awaited(0, m.UNHEARD)
    assert driver.state.handoffs.count == 0


def test_what_waiters_and_engines_can_take_of_the_masters_memory_is_bounded() -> None:
    driver = Waiting(waiter_bytes_max=4 * 4 * len(KEYS[0]), handoffs_max=3)
    driver.park(*KEYS)
    driver.expect(m.Failed, m.Await(KEYS[:1], "", 5), "d")
    for peer in ("e", "f", "g"):
        driver.park(*KEYS, peer=peer)
    driver.expect(m.Failed, m.Await(KEYS[:1], "", 5), "h")
    for number in range(5):
        driver.tell(m.OPEN, number=number)
    assert driver.count("handoff_news_refused") == 2
    driver.tell(m.ENDED, number=1)
    driver.tell(m.OPEN, number=7)
    assert driver.count("handoff_news_refused") == 2


def test_whose_connection_ends_waits_no_more(driver: Waiting) -> None:
    numbers = [driver.park(*KEYS), driver.park(*KEYS)]
    driver.ask(m.WaitersGone([*numbers, 77]), "")
    assert driver.state.handoffs.waiting == 0
    driver.put(KEYS[0])
    driver.tick(60)
    assert not driver.answered


def test_waiters_and_handoffs_are_bounded() -> None:
    driver = Waiting(waiters_per_peer_max=2, waiters_max=3, handoffs_max=2)
    driver.park(*KEYS)
    driver.park(*KEYS)
    driver.expect(m.Failed, m.Await(KEYS, "", 5), "d")
    driver.park(*KEYS, peer="e")
    driver.expect(m.Failed, m.Await(KEYS, "", 5), "f")
    driver.tell(m.OPEN, "t")
    driver.tell(m.OPEN, "u")
    driver.tell(m.OPEN, "v")
    assert driver.count("handoff_news_refused") == 1
    driver.tell(m.ENDED, "t")
    driver.tell(m.OPEN, "v")
    assert driver.now_there(*KEYS, transfer="t", wait_s=0).state == m.UNHEARD
    assert driver.now_there(*KEYS, transfer="v", wait_s=0).state == m.OPEN


@pytest.mark.parametrize(
    "request_",
    [
        m.Await([]),
        m.Await([b""]),
        m.Await([KEYS[0]] * 257),
        m.Await(KEYS, "t" * 129),
        m.Await(KEYS, "t", float("nan")),
        m.Await(KEYS, "t", float("inf")),
    ],
)
def test_nonsense_is_refused(driver: Waiting, request_: m.Await) -> None:
    driver.expect(m.Failed, request_)


@pytest.mark.parametrize(
    "news", [m.News("", 1, 1), m.News("t" * 129, 1, 1), m.News("t", 1, 0), m.News("t", -1, 1)]
)
def test_wrong_news_are_left_out(driver: Waiting, news: m.News) -> None:
    driver.expect(m.Done, m.Tell([news, m.News("good", 1, m.OPEN)]), "p")
    assert driver.count("handoff_news_refused") == 1
    assert driver.state.handoffs.count == 1
