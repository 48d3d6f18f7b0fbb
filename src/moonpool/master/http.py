"""The master's HTTP side: /metrics, /health, /status, and the pages of Mooncake's master.

A request is one small head, and a small body where a page takes one; an answer ends its connection.
So whatever a peer sends, a connection costs a few kilobytes, and the request path next door does
not notice. A long answer is made in parts, as fast as it is read.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from http import HTTPStatus
from typing import NamedTuple, cast
from urllib.parse import parse_qsl

from moonpool.master.service import LOG_LINES_PER_S, LogLimit

HEAD_BYTES_MAX = 8192
BODY_BYTES_MAX = 65_536
LENGTH_CHARS_MAX = 9
FIELDS_MAX = 64
REQUEST_S = 10.0
"""How long a peer may take from its connection to having read the answer."""

log = logging.getLogger("moonpool.master.http")
log.addFilter(LogLimit(LOG_LINES_PER_S))


class Page(NamedTuple):
    """What is answered; ``body`` may be made in parts while it is sent."""

    body: bytes | Iterator[bytes]
    content_type: str = "application/json"
    status: int = 200


class Asked(NamedTuple):
    """A request: the fields of its query, its body, and the token that it says."""

    method: str
    query: Mapping[str, str]
    body: bytes
    token: str


class Route(NamedTuple):
    """A page that depends on what is asked, for these methods."""

    methods: tuple[str, ...]
    serve: Callable[[Asked], Page]


Pages = Mapping[str, Callable[[], Page] | Route]


class HttpSession(asyncio.Protocol):
    """One connection: a request, its answer, the end."""

    def __init__(self, pages: Pages) -> None:
        self._pages = pages
        self._head = b""
        self._answered = False
        self._waiting: tuple[Route, Asked, int] | None = None
        self._parts: Iterator[bytes] | None = None
        self._paused = False
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(REQUEST_S, self._transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._timer is not None:
            self._timer.cancel()

    def data_received(self, data: bytes) -> None:
        if self._answered:
            return
        if self._waiting is not None:
            self._read_body(data)
            return
        self._head += data[: HEAD_BYTES_MAX + BODY_BYTES_MAX]
        end = self._head.find(b"\r\n\r\n")
        if 0 <= end <= HEAD_BYTES_MAX:
            self._serve(self._head[:end], self._head[end + 4 :])
        elif len(self._head) > HEAD_BYTES_MAX:
            self._refuse("431 Request Header Fields Too Large")

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._go_on()

    def _serve(self, head: bytes, rest: bytes) -> None:
        first, *lines = head.decode("latin-1").split("\r\n")
        method, _, others = first.partition(" ")
        target, _, version = others.partition(" ")
        if not version.startswith("HTTP/1."):
            self._refuse("400 Bad Request")
            return
        path, _, query = target.partition("?")
        page = self._pages.get(path)
        if page is None:
            paths = " ".join(self._pages)
            self._answer(Page(f"there is {paths}\n".encode(), "text/plain", 404))
        elif isinstance(page, Route):
            self._serve_route(page, method, query, _fields(lines), rest)
        elif method not in ("GET", "HEAD"):
            self._answer(Page(b"", "text/plain", 405), "Allow: GET, HEAD\r\n")
        else:
            self._answer(page(), empty=method == "HEAD")

    def _serve_route(
        self, route: Route, method: str, query: str, fields: dict[str, str], rest: bytes
    ) -> None:
        if method not in route.methods:
            allowed = ", ".join(route.methods)
            self._answer(Page(b"", "text/plain", 405), f"Allow: {allowed}\r\n")
            return
        length = fields.get("content-length", "0")
        known = length.isdecimal() and len(length) <= LENGTH_CHARS_MAX
        if not known or int(length) > BODY_BYTES_MAX:
            self._refuse("413 Content Too Large")
            return
        try:
            pairs = parse_qsl(query, keep_blank_values=True, max_num_fields=FIELDS_MAX)
        except ValueError:
            self._refuse("400 Bad Request")
            return
        _, _, token = fields.get("authorization", "").partition("Bearer ")
        asked = Asked(method, dict(pairs), b"", token.strip())
        self._waiting = route, asked, int(length)
        self._head = b""
        self._read_body(rest)

    def _read_body(self, data: bytes) -> None:
        if self._waiting is None:
            return
        route, asked, length = self._waiting
        self._head += data[: length - len(self._head)]
        if len(self._head) == length:
            self._waiting = None
            page = route.serve(asked._replace(body=self._head))
            self._answer(page, empty=asked.method == "HEAD")

    def _refuse(self, status: str) -> None:
        name = None if self._transport is None else self._transport.get_extra_info("peername")
        log.warning("closed %s: %s for %r", name, status, self._head[:60])
        self._answer(Page(b"", "text/plain", int(status.split()[0])))

    def _answer(self, page: Page, more: str = "", *, empty: bool = False) -> None:
        self._answered = True
        self._head = b""
        if self._transport is None:
            return
        status = HTTPStatus(page.status)
        if isinstance(page.body, bytes):
            more += f"Content-Length: {len(page.body)}\r\n"
        head = (
            f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: {page.content_type}\r\n"
            f"{more}Connection: close\r\n\r\n"
        )
        self._transport.write(head.encode())
        if empty:
            self._transport.close()
            return
        if not isinstance(page.body, bytes):
            self._parts = page.body
            self._go_on()
            return
        self._transport.write(page.body)
        self._transport.close()

    def _go_on(self) -> None:
        """Send the next part; others have their turn between two parts."""
        if self._transport is None or self._parts is None or self._paused:
            return
        part = next(self._parts, None)
        if part is None:
            self._parts = None
            self._transport.close()
            return
        self._transport.write(part)
        asyncio.get_running_loop().call_soon(self._go_on)


def _fields(lines: list[str]) -> dict[str, str]:
    parted = (line.partition(":") for line in lines)
    return {name.strip().lower(): value.strip() for name, _, value in parted}
