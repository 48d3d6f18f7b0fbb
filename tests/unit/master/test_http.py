from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moonpool.master.http import HEAD_BYTES_MAX, HttpSession, Pages
from moonpool.master.pages import pages_of
from tests.unit.master.peers import Pipe, new_service


async def ask(*parts: bytes, pages: Pages | None = None) -> tuple[str, bytes]:
    """Send the parts of a request; return the status line's rest and the body."""
    session, pipe = HttpSession(pages or pages_of(new_service())), Pipe()
    session.connection_made(pipe)
    for part in parts:
        session.data_received(part)
    session.connection_lost(None)
    if not pipe.closed:
        return "", b""
    head, _, body = bytes(pipe.sent).partition(b"\r\n\r\n")
    assert b"Connection: close" in head
    return head.decode().splitlines()[0].removeprefix("HTTP/1.1 "), body


async def test_pages() -> None:
    status, body = await ask(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
    assert (status, json.loads(body)["pool"]) == ("200 OK", "empty")
    status, body = await ask(b"GET /status?x=1 HTTP/1.0\r\n\r\n")
    assert (status, json.loads(body)["objects"]) == ("200 OK", 0)
    status, body = await ask(b"GET /met", b"rics HTTP/1.1\r\n\r", b"\n")
    assert b"moonpool_objects 0.0" in body


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (b"HEAD /health HTTP/1.1\r\n\r\n", "200 OK"),
        (b"GET / HTTP/1.1\r\n\r\n", "404 Not Found"),
        (b"GET /etc/passwd HTTP/1.1\r\n\r\n", "404 Not Found"),
        (b"POST /health HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello", "405 Method Not Allowed"),
        (b"GET /health HTTP/2\r\n\r\n", "400 Bad Request"),
        (b"\r\n\r\n", "400 Bad Request"),
        (b"\xff\xfe \xff \xff\r\n\r\n", "400 Bad Request"),
        (b"GET /" + b"a" * HEAD_BYTES_MAX, "431 Request Header Fields Too Large"),
        (b"GET /health HTTP/1.1\r\n", ""),
    ],
)
async def test_other_requests(request_: bytes, expected: str) -> None:
    status, body = await ask(request_)
    assert status == expected
    assert b"hello" not in body
    if request_.startswith(b"HEAD"):
        assert not body


async def test_what_comes_after_the_request_is_ignored() -> None:
    asked = b"GET /health HTTP/1.1\r\n\r\n"
    assert (await ask(asked, asked, b"x" * 100_000))[0] == "200 OK"


@given(st.lists(st.binary(max_size=3000), max_size=6))
async def test_any_bytes_are_answered_or_waited_for(parts: list[bytes]) -> None:
    status, _ = await ask(*parts, pages={})
    assert status[:3] in ("", "400", "404", "431")
