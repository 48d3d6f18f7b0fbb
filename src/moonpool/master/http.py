"""The master's HTTP side: GET /metrics, /health and /status, and nothing else.

A request is one small head; an answer ends its connection. So whatever a peer sends, a connection
costs a few kilobytes, and the request path next door does not notice.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import NamedTuple, cast

import msgspec
from prometheus_client import CONTENT_TYPE_LATEST

from moonpool.master.metrics import registry_of, render
from moonpool.master.service import LOG_LINES_PER_S, LogLimit, Service

HEAD_BYTES_MAX = 8192
REQUEST_S = 10.0
"""How long a peer may take from its connection to having read the answer."""

log = logging.getLogger("moonpool.master.http")
log.addFilter(LogLimit(LOG_LINES_PER_S))


class Page(NamedTuple):
    """What is answered."""

    body: bytes
    content_type: str = "application/json"


Pages = dict[str, Callable[[], Page]]


def pages_of(service: Service) -> Pages:
    """Return what there is to read, by path."""
    registry = registry_of(service)

    def health() -> Page:
        ready = any(segment.ready for segment in service.status().segments)
        body = {"status": "ok", "epoch": service.epoch, "pool": "ready" if ready else "empty"}
        return Page(msgspec.json.encode(body))

    return {
        "/metrics": lambda: Page(render(registry), CONTENT_TYPE_LATEST),
        "/health": health,
        "/status": lambda: Page(msgspec.json.encode(as_plain(service.status()))),
    }


class HttpSession(asyncio.Protocol):
    """One connection: a request, its answer, the end."""

    def __init__(self, pages: Pages) -> None:
        self._pages = pages
        self._head = b""
        self._answered = False
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
        self._head += data[: HEAD_BYTES_MAX + 1]
        end = self._head.find(b"\r\n\r\n")
        if 0 <= end <= HEAD_BYTES_MAX:
            self._serve(self._head[:end])
        elif len(self._head) > HEAD_BYTES_MAX:
            self._refuse("431 Request Header Fields Too Large")

    def _serve(self, head: bytes) -> None:
        method, _, rest = head.split(b"\r\n", 1)[0].partition(b" ")
        target, _, version = rest.partition(b" ")
        if not version.startswith(b"HTTP/1."):
            self._refuse("400 Bad Request")
            return
        page = self._pages.get(target.partition(b"?")[0].decode("latin-1"))
        if page is None:
            paths = " ".join(self._pages)
            self._answer("404 Not Found", Page(f"there is {paths}\n".encode(), "text/plain"))
        elif method not in (b"GET", b"HEAD"):
            self._answer("405 Method Not Allowed", Page(b"", "text/plain"), "Allow: GET, HEAD\r\n")
        else:
            self._answer("200 OK", page(), empty=method == b"HEAD")

    def _refuse(self, status: str) -> None:
        name = None if self._transport is None else self._transport.get_extra_info("peername")
        log.warning("closed %s: %s for %r", name, status, self._head[:60])
        self._answer(status, Page(b"", "text/plain"))

    def _answer(self, status: str, page: Page, more: str = "", *, empty: bool = False) -> None:
        self._answered = True
        self._head = b""
        if self._transport is None:
            return
        head = (
            f"HTTP/1.1 {status}\r\nContent-Type: {page.content_type}\r\n"
            f"Content-Length: {len(page.body)}\r\n{more}Connection: close\r\n\r\n"
        )
        self._transport.write(head.encode() + (b"" if empty else page.body))
        self._transport.close()


def as_plain(value: object) -> object:
    """Return structs as dictionaries with their fields' names (on the wire they are arrays)."""
    if isinstance(value, msgspec.Struct):
        return {name: as_plain(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, list | tuple):
        return [as_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: as_plain(item) for key, item in value.items()}
    return value
