"""The prefill of a request on an engine of its own, beside or before the decode on another."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import aiohttp
import msgspec

from moonpool.router import presence
from moonpool.router import upstream as up
from moonpool.router.instance import Instance, Ticket
from moonpool.router.pd_messages import MESSAGE_COUNTS

ANSWER_BYTES_MAX = 16 << 20
BUSY = frozenset((429, 502, 503, 504))
T = TypeVar("T")


class PrefillFailed(Exception):
    """The engine did not compute the prompt. broken: whether the engine is to blame; reached:
    whether it hung up on the request; final: whether another one would not do it either."""

    def __init__(
        self,
        reason: str,
        instance: Instance,
        *,
        broken: bool = False,
        reached: bool = False,
        final: bool = False,
    ) -> None:
        super().__init__(f"{instance.url}: {reason}")
        self.reason, self.instance = reason, instance
        self.broken, self.reached, self.final = broken, reached, final


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the engine said: cached prompt tokens, None if it does not say; what the decoding engine
    is to be told, None if nothing; and how Anthropic's API counts the prompt."""

    cached: int | None
    params: dict[str, Any] | None
    prompt: dict[str, int] = field(default_factory=dict)


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens_details: _Details | None = None
    input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    cache_read_input_tokens: int | None = None


class _Answer(msgspec.Struct):
    usage: _Usage | None = None
    kv_transfer_params: dict[str, Any] | None = None


_answer = msgspec.json.Decoder(_Answer)


class Prefill:
    """One attempt; ``close`` ends it wherever it is.

    done: called with the seconds that it took, once it has succeeded.
    """

    def __init__(self, ticket: Ticket, done: Callable[[float], None]) -> None:
        self.instance = ticket.plan.serve
        self.outcome: Outcome | None = None
        self._ticket, self._done = ticket, done
        self._task: asyncio.Task[Outcome] | None = None

    def start(
        self,
        http: aiohttp.ClientSession,
        path: str,
        headers: Mapping[str, str],
        body: bytes,
        timeout_s: float,
    ) -> None:
        """Send the request."""
        self._task = asyncio.create_task(self._run(http, path, headers, body, timeout_s))
        self._task.add_done_callback(self._ended)

    async def result(self) -> Outcome:
        """Return the outcome; raise PrefillFailed."""
        assert self._task is not None, "started"
        # Were it awaited itself, a client that leaves would end it unseen.
        await asyncio.wait((self._task,))
        return self._task.result()

    async def unless_failed(self, work: Awaitable[T]) -> T:
        """Return what the work gives; raise PrefillFailed as soon as there is no sense in it."""
        assert self._task is not None, "started"
        other = asyncio.ensure_future(work)
        try:
            await asyncio.wait((other, self._task), return_when="FIRST_COMPLETED")
            if not other.done():
                self._task.result()
                await asyncio.wait((other,))
            return other.result()
        finally:
            if not other.done():
                other.cancel()
                with contextlib.suppress(asyncio.CancelledError, Exception):
                    await other

    def close(self) -> bool:
        """End it; return whether it was still running."""
        self._ticket.end()
        return self._task is not None and self._task.cancel()

    def _ended(self, task: asyncio.Task[Outcome]) -> None:
        self._ticket.end()
        if not task.cancelled() and task.exception() is None:
            self.outcome = task.result()

    async def _run(
        self,
        http: aiohttp.ClientSession,
        path: str,
        headers: Mapping[str, str],
        body: bytes,
        timeout_s: float,
    ) -> Outcome:
        begun = asyncio.get_running_loop().time()
        try:
            async with (
                presence.patience(self.instance, timeout_s),
                await up.send(http, self.instance, "POST", path, headers, body) as response,
            ):
                text = await up.read_all(response, ANSWER_BYTES_MAX)
        except TimeoutError:
            reason = "silent" if self.instance.healthy else "unhealthy"
            raise PrefillFailed(reason, self.instance, broken=True) from None
        except up.UpstreamError as error:
            reason = "hung up" if error.reached else "unreachable"
            raise PrefillFailed(reason, self.instance, broken=True, reached=error.reached) from None
        except (aiohttp.ClientError, OSError, ValueError):
            raise PrefillFailed("broken answer", self.instance, broken=True, reached=True) from None
        if response.status in BUSY:
            raise PrefillFailed("busy", self.instance)
        if response.status != 200:
            raise PrefillFailed("refused", self.instance, final=True)
        self._done(asyncio.get_running_loop().time() - begun)
        return read_outcome(text)


def read_outcome(text: bytes) -> Outcome:
    """Return what the answer of a prefilling engine says."""
    try:
        answer = _answer.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return Outcome(None, None)
    usage = answer.usage or _Usage()
    details = usage.prompt_tokens_details or _Details()
    said = {name: getattr(usage, name) for name in MESSAGE_COUNTS}
    prompt = {name: count for name, count in said.items() if count is not None}
    return Outcome(details.cached_tokens, answer.kv_transfer_params, prompt)
