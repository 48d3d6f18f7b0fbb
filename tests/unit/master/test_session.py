from __future__ import annotations

import asyncio
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moonpool.core import messages as m
from moonpool.master import session as limits
from moonpool.master.session import STUCK_S, TURN_REQUESTS
from moonpool.protocol.codec import encode
from moonpool.protocol.framing import HELLO_BYTES_MAX
from moonpool.protocol.versions import PROTOCOL_MAX
from tests.unit.master.peers import EPOCH, Clock, Peer, mount, new_service, put


def test_hello_is_answered_with_version_and_epoch() -> None:
    peer = Peer(new_service())
    assert peer.ask(m.Hello(1, 9, "client", "c1")) == m.Welcome(PROTOCOL_MAX, EPOCH)
    assert not peer.closed


@pytest.mark.parametrize(
    "data",
    [
        encode(1, m.GetStatus()),
        encode(1, m.Hello(1, 1, "admin", "c1")),
        encode(0, m.Hello(1, 1, "client", "c1")),
        b"\0\0\0\0",
        b"\xff\xff\xff\xff",
        (HELLO_BYTES_MAX + 1).to_bytes(4, "little"),
        b"\x05\0\0\0hello",
        b"GET / HTTP/1.1\r\n\r\n",
    ],
)
def test_a_bad_start_closes_the_connection_and_is_logged_with_its_peer(
    data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    service = new_service()
    other, peer = Peer(service, "c2"), Peer(service)
    peer.session.data_received(data)
    assert peer.pipe.closed == "closed"
    assert "192.0.2.1:4242" in caplog.text
    assert service.counts.refused == 1
    peer.session.data_received(encode(1, m.Hello(1, 1, "client", "c1")))
    assert not peer.replies()
    assert isinstance(other.ask(m.GetStatus()), m.Status)


def test_no_common_version_is_told_before_the_connection_is_closed() -> None:
    peer = Peer(new_service())
    reply = peer.ask(m.Hello(PROTOCOL_MAX + 1, 99, "client", "c1"))
    assert isinstance(reply, m.Failed)
    assert (reply.code, peer.pipe.closed) == (-300, "closed")


def test_pipelined_requests_are_answered_in_order_with_one_write() -> None:
    peer = Peer(new_service(), "c1")
    writes = peer.pipe.writes
    peer.feed(*[m.Exists([b"\0a"])] * 20, m.Release([1]), m.GetSegments())
    replies = peer.replies()
    assert [request_id for request_id, _ in replies] == [*range(2, 22), 23]
    assert replies[-1][1] == m.Segments([])
    assert peer.pipe.writes == writes + 1


@given(st.lists(st.integers(0, 120), max_size=10))
def test_any_cut_of_the_stream_gives_the_same_replies(cuts: list[int]) -> None:
    peer = Peer(new_service())
    data = encode(1, m.Hello(1, 1, "client", "c1"))
    data += encode(2, m.Exists([b"\0a", b"\0b"])) + encode(3, m.MatchKeys([b"\0a"]))
    edges = [0, *sorted(cut for cut in cuts if cut < len(data)), len(data)]
    for first, last in itertools.pairwise(edges):
        peer.session.data_received(data[first:last])
    assert peer.replies() == [
        (1, m.Welcome(1, EPOCH)),
        (2, m.Existing(b"\0\0")),
        (3, m.Matched(0)),
    ]


def test_a_bad_request_ends_one_connection_after_what_came_before_it() -> None:
    service = new_service()
    peer, other = Peer(service, "c1"), Peer(service, "c1")
    good = encode(7, m.Exists([b"\0a"]))
    peer.session.data_received(good + b"\x02\0\0\0\x92\x01" + good)
    assert [request_id for request_id, _ in peer.replies()] == [7]
    assert peer.closed
    assert other.ask(m.Exists([b"\0a"])) == m.Existing(b"\0")


def test_a_peer_that_reads_nothing_is_not_served_until_it_does() -> None:
    peer = Peer(new_service(), "c1")
    peer.session.pause_writing()
    peer.feed(m.GetSegments(), m.GetSegments())
    assert not peer.replies()
    assert not peer.pipe.reading
    peer.session.resume_writing()
    assert len(peer.replies()) == 2
    assert peer.pipe.reading


def test_large_replies_are_written_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "OUT_BYTES_HIGH", 100)
    peer = Peer(new_service(), "c1")
    writes = peer.pipe.writes
    peer.feed(*[m.Exists([b"\0a"] * 60)] * 6)
    assert len(peer.replies()) == 6
    assert peer.pipe.writes == writes + 3


async def test_a_flood_of_requests_lets_others_have_their_turn() -> None:
    service = new_service()
    peer, other = Peer(service, "c1"), Peer(service, "c2")
    peer.feed(*[m.GetSegments()] * (2 * TURN_REQUESTS + 1))
    assert len(peer.replies()) == TURN_REQUESTS
    assert not peer.pipe.reading
    assert other.ask(m.GetSegments()) == m.Segments([])
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert len(peer.replies()) == TURN_REQUESTS + 1
    assert peer.pipe.reading


async def test_a_connection_that_ends_in_the_middle_of_a_flood_is_forgotten() -> None:
    service = new_service()
    peer = Peer(service, "c1")
    peer.feed(*[m.GetSegments()] * (TURN_REQUESTS + 1))
    peer.hang_up()
    await asyncio.sleep(0)
    assert len(peer.replies()) == TURN_REQUESTS
    assert not service.sessions


@pytest.mark.parametrize("what", ["silent", "half a frame", "reads nothing"])
def test_what_is_waited_for_too_long_is_closed(what: str) -> None:
    clock = Clock()
    service = new_service(clock)
    idle = Peer(service, "idle")
    peer = Peer(service, "" if what == "silent" else "c1")
    if what == "half a frame":
        peer.session.data_received(encode(1, m.GetSegments())[:-1])
    elif what == "reads nothing":
        peer.session.pause_writing()
    clock.now += STUCK_S - 0.1
    service.tick()
    assert not peer.closed
    clock.now += 0.2
    service.tick()
    assert peer.pipe.closed == "aborted"
    assert not idle.closed


def test_a_frame_that_arrives_at_last_is_in_time() -> None:
    clock = Clock()
    service = new_service(clock)
    peer = Peer(service, "c1")
    frame = encode(9, m.GetSegments())
    peer.session.data_received(frame[:5])
    clock.now += STUCK_S - 1
    peer.session.data_received(frame[5:])
    clock.now += STUCK_S
    service.tick()
    assert peer.replies() == [(9, m.Segments([]))]
    assert not peer.closed


def test_a_closed_connection_with_unread_replies_does_not_live_on() -> None:
    clock = Clock()
    service = new_service(clock)
    peer = Peer(service, "c1")
    peer.session.refuse(ValueError("test"))
    assert peer.pipe.closed == "closed"
    clock.now += STUCK_S + 1
    service.tick()
    assert peer.pipe.closed == "aborted"


def test_pushes_to_a_node_that_reads_nothing_are_bounded() -> None:
    service = new_service()
    node, client = Peer(service, "n1", "node"), Peer(service, "c1")
    mount(node)
    put(client, b"\0a")
    put(client, b"\0b")
    client.ask(m.Remove([b"\0a"]))
    ((push_id, push),) = node.replies()
    assert push_id == 0
    assert isinstance(push, m.DropSlots)
    node.pipe.unread = limits.OUT_BYTES_MAX + 1
    client.ask(m.Remove([b"\0b"]))
    assert node.pipe.closed == "aborted"


def test_a_push_comes_after_the_replies_before_it() -> None:
    service = new_service()
    node = Peer(service, "n1", "node")
    mount(node)
    put(node, b"\0a")
    node.feed(m.GetSegments(), m.Remove([b"\0a"]), m.GetSegments())
    kinds = [type(reply) for _, reply in node.replies()]
    assert kinds == [m.Segments, m.DropSlots, m.Codes, m.Segments]
