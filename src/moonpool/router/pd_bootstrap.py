"""The server beside a prefilling engine that says where its KV can be had: Mooncake's bootstrap."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import aiohttp
import msgspec

from moonpool.router.instance import Instance
from moonpool.router.upstream import read_all

TIMEOUT_S = 5.0
# An engine that began anew has another id, and who asks for the old one waits in vain.
KNOWN_S = 10.0
# A server that hangs must not cost every request the time until that is known.
FAILED_S = 10.0
ANSWER_BYTES_MAX = 1 << 20
RANKS_MAX = 1024
KNOWN_MAX = 1024


class BootstrapError(Exception):
    """There is no usable answer."""


class _Rank(msgspec.Struct):
    engine_id: str


_ranks = msgspec.json.Decoder(dict[str, _Rank])


@dataclass(slots=True)
class _Known:
    engines: list[tuple[int, str]]
    until_s: float
    turn: int = 0


class Bootstraps:
    """Engine ids by data-parallel rank, asked for when needed and believed for KNOWN_S; a failure
    for FAILED_S."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._known: dict[str, _Known] = {}
        self._failed: dict[str, tuple[float, str]] = {}

    def forget(self, instance: Instance) -> None:
        """Ask anew next time."""
        self._known.pop(instance.bootstrap, None)

    async def next(self, http: aiohttp.ClientSession, instance: Instance) -> tuple[int, str, int]:
        """Return (rank, engine id, number of ranks), each rank in turn; raise BootstrapError."""
        known = self._known.get(instance.bootstrap)
        if known is None or self._clock() >= known.until_s:
            turn = known.turn if known is not None else 0
            engines = await self._ask(http, instance.bootstrap)
            if len(self._known) >= KNOWN_MAX:
                self._known.clear()
            known = _Known(engines, self._clock() + KNOWN_S, turn)
            self._known[instance.bootstrap] = known
        rank, engine = known.engines[known.turn % len(known.engines)]
        known.turn += 1
        return rank, engine, len(known.engines)

    async def _ask(self, http: aiohttp.ClientSession, base: str) -> list[tuple[int, str]]:
        until_s, why = self._failed.get(base, (0.0, ""))
        if self._clock() < until_s:
            raise BootstrapError(why)
        try:
            engines = await _ask(http, base)
        except BootstrapError as error:
            if len(self._failed) >= KNOWN_MAX:
                self._failed.clear()
            self._failed[base] = (self._clock() + FAILED_S, str(error))
            raise
        self._failed.pop(base, None)
        return engines


async def _ask(http: aiohttp.ClientSession, base: str) -> list[tuple[int, str]]:
    try:
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
        async with http.get(f"{base}/query", timeout=timeout, allow_redirects=False) as response:
            if response.status != 200:
                raise BootstrapError(f"{base} says HTTP {response.status}")
            text = await read_all(response, ANSWER_BYTES_MAX)
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
        raise BootstrapError(f"{base}: {type(error).__name__}") from None
    try:
        found = sorted((int(rank), each.engine_id) for rank, each in _ranks.decode(text).items())
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError, RecursionError):
        raise BootstrapError(f"{base} gives no list of engines") from None
    if not 0 < len(found) <= RANKS_MAX:
        raise BootstrapError(f"{base} knows of no engine")
    return found
