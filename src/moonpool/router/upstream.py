"""Talking to instances: one request, one answer, and what may go wrong between them."""

from __future__ import annotations

from collections.abc import Mapping

import aiohttp

from moonpool.router.instance import Instance

CONNECT_TIMEOUT_S = 5.0
# Shorter than uvicorn's own 5 s, so that no request meets a connection that is being closed.
KEEP_ALIVE_S = 4.0
CONNECTIONS_MAX = 16_384
HEADER_BYTES_MAX = 64 << 10
AUTO_HEADERS = ("Accept-Encoding", "User-Agent", "Content-Type", "Accept")


class UpstreamError(Exception):
    """An instance gave no answer. reached: whether it may have seen the request; garbage: whether
    it answered what is no HTTP; silent: whether it only kept silent for too long."""

    def __init__(
        self, message: str, *, reached: bool = True, garbage: bool = False, silent: bool = False
    ) -> None:
        super().__init__(message)
        self.reached, self.garbage, self.silent = reached, garbage, silent


def session(idle_timeout_s: float) -> aiohttp.ClientSession:
    """Return the pool of connections to all instances."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(
            limit=CONNECTIONS_MAX, keepalive_timeout=KEEP_ALIVE_S, enable_cleanup_closed=False
        ),
        timeout=aiohttp.ClientTimeout(
            total=None, sock_connect=CONNECT_TIMEOUT_S, sock_read=idle_timeout_s
        ),
        auto_decompress=False,
        cookie_jar=aiohttp.DummyCookieJar(),
        max_line_size=HEADER_BYTES_MAX,
        max_field_size=HEADER_BYTES_MAX,
    )


async def send(
    http: aiohttp.ClientSession,
    instance: Instance,
    method: str,
    path: str,
    headers: Mapping[str, str],
    body: bytes,
) -> aiohttp.ClientResponse:
    """Return the answer's head, or raise UpstreamError."""
    try:
        return await http.request(
            method,
            instance.url + path,
            data=body or None,
            headers=headers,
            allow_redirects=False,
            skip_auto_headers=AUTO_HEADERS,
        )
    except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
        raise UpstreamError(_text(error), reached=False) from error
    except (aiohttp.ServerTimeoutError, TimeoutError) as error:
        raise UpstreamError("it kept silent for too long", silent=True) from error
    except aiohttp.ClientResponseError as error:
        raise UpstreamError(_text(error), garbage=True) from error
    except (aiohttp.ClientError, OSError, ValueError) as error:
        raise UpstreamError(_text(error)) from error


async def read(upstream: aiohttp.ClientResponse) -> bytes:
    """Return what has come of the answer's body, b"" at its end; raise UpstreamError."""
    try:
        return await upstream.content.readany()
    except (aiohttp.ServerTimeoutError, TimeoutError) as error:
        raise UpstreamError("it kept silent for too long", silent=True) from error
    except (aiohttp.ClientError, OSError, ValueError) as error:
        raise UpstreamError(_text(error), garbage=True) from error


async def read_all(upstream: aiohttp.ClientResponse, most: int) -> bytes:
    """Return the whole body; raise ValueError for more than ``most`` bytes, and what aiohttp
    raises."""
    parts, size = [], 0
    async for part in upstream.content.iter_any():
        parts.append(part)
        size += len(part)
        if size > most:
            raise ValueError(f"more than {most} bytes")
    return b"".join(parts)


def _text(error: BaseException) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
