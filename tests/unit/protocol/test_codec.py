from __future__ import annotations

import random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moonpool.core import messages as m
from moonpool.errors import ProtocolError
from moonpool.protocol.codec import (
    check_hello,
    decode_reply,
    decode_request,
    encode,
)
from moonpool.protocol.framing import FrameDecoder
from tests.unit.protocol.mutants import mutant
from tests.unit.protocol.strategies import hostile_payloads, replies, request_ids, requests


def payload_of(request_id: int, message: m.Message) -> bytes:
    (payload,) = FrameDecoder().feed(encode(request_id, message))
    return payload


@given(request_ids, requests)
def test_every_request_reads_back(request_id: int, request: m.Request) -> None:
    assert decode_request(payload_of(request_id, request)) == (request_id, request)


@given(request_ids, replies)
def test_every_reply_and_push_reads_back(request_id: int, reply: m.Reply | m.Push) -> None:
    assert decode_reply(payload_of(request_id, reply)) == (request_id, reply)


@settings(max_examples=1000, deadline=None)
@given(hostile_payloads)
def test_bytes_of_any_shape_are_a_message_or_a_protocol_error(payload: bytes) -> None:
    is_message_or_refused(payload)


@settings(max_examples=500, deadline=None)
@given(st.randoms(use_true_random=False))
def test_damaged_requests_are_a_message_or_a_protocol_error(chance: random.Random) -> None:
    for _ in range(20):
        is_message_or_refused(mutant(chance))


def is_message_or_refused(payload: bytes) -> None:
    for decode in (decode_request, decode_reply):
        try:
            request_id, message = decode(payload)
        except ProtocolError:
            continue
        assert 0 <= request_id < 2**32
        assert isinstance(message, m.Message)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        msgspec.msgpack.encode([1]),
        msgspec.msgpack.encode([1, ["Tick"]]),
        msgspec.msgpack.encode([1, ["PeerGone", "a", "node"]]),
        msgspec.msgpack.encode([-1, ["GetStatus"]]),
        msgspec.msgpack.encode([2**32, ["GetStatus"]]),
        msgspec.msgpack.encode([1, ["Welcome", 1, 1]]),
        b"\x92\x01\x92\xa9MatchKeys\xdd\xff\xff\xff\xff",
        b"\x92\x01\x93\xa9GetStatus" + b"\x91" * 100_000,
    ],
)
def test_what_is_no_request_is_refused(payload: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_request(payload)


def test_a_newer_peer_may_append_fields() -> None:
    payload = msgspec.msgpack.encode([7, ["Exists", [b"a"], "new field", 3]])
    assert decode_request(payload) == (7, m.Exists([b"a"]))


def test_an_older_peer_may_leave_fields_with_defaults_out() -> None:
    payload = msgspec.msgpack.encode([7, ["Remove", [b"a"]]])
    assert decode_request(payload) == (7, m.Remove([b"a"], False))


def test_a_message_too_large_for_a_frame_is_refused() -> None:
    with pytest.raises(ProtocolError, match="a Match of"):
        encode(1, m.Match(b"", bytes(65 * 1024 * 1024), 16))


@pytest.mark.parametrize(
    "message",
    [
        m.GetStatus(),
        m.Hello(1, 1, "admin", "p"),
        m.Hello(1, 1, "client", ""),
        m.Hello(1, 1, "client", "x" * 129),
        m.Hello(1, 1, "client", "a\nb"),
    ],
)
def test_a_bad_first_message_is_refused(message: m.Request) -> None:
    with pytest.raises(ProtocolError):
        check_hello(message)


def test_a_good_first_message_passes() -> None:
    hello = m.Hello(1, 1, "node", "x" * 128)
    assert check_hello(hello) is hello
