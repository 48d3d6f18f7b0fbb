"""Small answers of servers that nobody vouches for."""

from __future__ import annotations

import aiohttp

ANSWER_BYTES_MAX = 16 << 20
NO_ANSWER = (aiohttp.ClientError, TimeoutError, OSError, ValueError, RecursionError)
"""What ``fetch``, and decoding what it returns, may raise."""


async def fetch(http: aiohttp.ClientSession, url: str, timeout_s: float) -> bytes:
    """Return the body of an answer of status 200; raise one of NO_ANSWER."""
    timeout = aiohttp.ClientTimeout(total=timeout_s)
    async with http.get(url, timeout=timeout) as response:
        response.raise_for_status()
        body = bytearray()
        async for part in response.content.iter_any():
            body += part
            if len(body) > ANSWER_BYTES_MAX:
                raise ValueError(f"an answer of more than {ANSWER_BYTES_MAX} bytes")
        return bytes(body)
