"""Questions that the master answers later."""

from __future__ import annotations

from moonpool.core import messages as m
from tests.unit.master.peers import Clock, Peer, mount, new_service, put

KEY = b"\0key"


def test_an_await_is_answered_later_and_holds_nothing_up() -> None:
    service = new_service()
    node, peer, other = Peer(service, "n", "node"), Peer(service, "d"), Peer(service, "p")
    mount(node)
    peer.feed(m.Await([KEY], "", 5.0))
    assert not peer.replies()
    assert peer.ask(m.Exists([KEY])) == m.Existing(b"\0")
    put(other, KEY)
    assert peer.replies() == [(2, m.Awaited(1))]


def test_an_await_ends_with_its_time() -> None:
    clock = Clock()
    service = new_service(clock)
    peer = Peer(service, "d")
    peer.feed(m.Await([KEY], "", 5.0))
    clock.now += 5
    service.tick()
    assert peer.replies() == [(2, m.Awaited(0))]


def test_a_lost_connection_waits_for_nothing() -> None:
    service = new_service()
    peer, again = Peer(service, "d"), Peer(service, "d")
    peer.feed(m.Await([KEY], "", 5.0), m.Await([KEY], "", 5.0))
    assert service.state.state.handoffs.waiting == 2
    peer.hang_up()
    assert service.state.state.handoffs.waiting == 0
    assert not service._parked
    assert not again.replies()


def test_a_prefill_engine_that_is_gone_is_told_of() -> None:
    clock = Clock()
    service = new_service(clock)
    engine, peer = Peer(service, "p"), Peer(service, "d")
    assert engine.ask(m.Tell([m.News("t", 1, m.OPEN)])) == m.Done()
    peer.feed(m.Await([KEY], "t", 5.0))
    engine.hang_up()
    clock.now += 2
    service.tick()
    assert peer.replies() == [(2, m.Awaited(0, m.FAILED))]


def test_news_need_the_token_and_waiting_does_not() -> None:
    service = new_service(token="secret")
    peer = Peer(service, "d")
    assert isinstance(peer.ask(m.Tell([m.News("t", 1, m.OPEN)])), m.Failed)
    assert peer.ask(m.Await([KEY])) == m.Awaited(0)
