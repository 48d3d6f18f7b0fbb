"""What the router finds out about a prompt before it routes it."""

from __future__ import annotations

import asyncio
from typing import Protocol

import aiohttp

from moonpool.router.metrics import RouterMetrics
from moonpool.router.openai import Fields
from moonpool.router.pool import PoolView
from moonpool.router.prompt import Prompt, RoutedRequest
from moonpool.router.text import TextPrompts
from moonpool.router.usage import Usage

ASKING_MAX = 32


class TokenPrompts(Protocol):
    """Turns requests into token ids and block hashes."""

    def start(self, http: aiohttp.ClientSession) -> None:
        """Take the way to instances, once there is one."""

    async def prompt(self, path: str, fields: Fields) -> Prompt | None:
        """Return the prompt in an engine's own blocks, or None where that cannot be told."""

    def counted(self, prompt: Prompt, prompt_tokens: int) -> bool:
        """Note what an engine counted; return False if it disagrees."""

    def describe(self) -> dict[str, object]:
        """Return its state for people."""


class Knowledge:
    """Prompts as tokens where possible, else as text; and what the pool has of them."""

    def __init__(
        self,
        metrics: RouterMetrics,
        tokens: TokenPrompts | None = None,
        pool: PoolView | None = None,
        *,
        pool_wait_s: float = 0.02,
    ) -> None:
        self.text = TextPrompts()
        self.tokens = tokens
        self.pool = pool
        self._metrics = metrics
        self._pool_wait_s = pool_wait_s
        self._asking: set[asyncio.Future[int]] = set()

    async def prompt(self, path: str, fields: Fields) -> Prompt:
        """Return what is known of the prompt."""
        found = await self.tokens.prompt(path, fields) if self.tokens is not None else None
        if found is None:
            found = self.text.prompt(path, fields)
        if found.keys:
            self._metrics.prompts.labels("tokens" if found.exact else "text").inc()
            self._metrics.exact.set(found.exact)
        return found

    async def ask_pool(self, request: RoutedRequest) -> None:
        """Fill in ``pool_tokens``, unless the pool takes too long to say."""
        prompt = request.prompt
        if self.pool is None or not prompt.hashes:
            return
        known = self.pool.known(prompt.hashes, int(prompt.block_tokens))
        if known is not None:
            request.pool_tokens = float(known)
            if known:
                request.pool_hosts = self.pool.hosts(prompt.hashes, int(prompt.block_tokens))
            self._metrics.pool_lookups.labels("known hit" if known else "known miss").inc()
            return
        if len(self._asking) >= ASKING_MAX:
            self._metrics.pool_lookups.labels("busy").inc()
            return
        # A call to the pool ends by its own deadline; nobody needs to wait for that.
        asked = asyncio.ensure_future(self.pool.prefix(prompt.hashes, int(prompt.block_tokens)))
        self._asking.add(asked)
        asked.add_done_callback(self._asking.discard)
        done, _ = await asyncio.wait({asked}, timeout=self._pool_wait_s)
        if done:
            request.pool_tokens = float(asked.result())
        outcome = "late" if not done else "hit" if request.pool_tokens else "miss"
        self._metrics.pool_lookups.labels(outcome).inc()

    def is_pool_down(self) -> bool:
        """Return whether the pool is known to be out of reach; False where none was named."""
        return self.pool is not None and self.pool.down

    def learn(self, prompt: Prompt, usage: Usage) -> None:
        """Take what an engine counted at the end of its answer."""
        self._metrics.prompt_tokens.inc(usage.prompt_tokens)
        self._metrics.cached_tokens.inc(usage.cached_tokens or 0)
        if not prompt.exact:
            self.text.learn(prompt, usage.prompt_tokens)
        elif self.tokens is not None and not self.tokens.counted(prompt, usage.prompt_tokens):
            self._metrics.tokenizer_mismatches.inc()

    def report(self) -> None:
        """Bring the metrics up to date that are only looked at now and then."""
        feed = self.pool.describe().get("feed") if self.pool is not None else None
        for what, value in feed.items() if isinstance(feed, dict) else ():
            if isinstance(value, int):
                self._metrics.pool_feed.labels(what).set(value)

    def describe(self) -> dict[str, object]:
        """Return how prompts are known, for people."""
        return {
            "prompts": self.tokens.describe()
            if self.tokens is not None
            else {"kind": "text", "why": "no tokenizer was asked for"},
            "bytes_per_token": round(self.text.bytes_per_token, 3),
            "pool": self.pool.describe() if self.pool is not None else None,
        }
