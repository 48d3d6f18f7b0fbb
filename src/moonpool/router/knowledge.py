"""What the router finds out about a prompt before it routes it."""

from __future__ import annotations

import asyncio
from typing import Protocol

from moonpool.router.metrics import RouterMetrics
from moonpool.router.openai import Fields
from moonpool.router.pool import PoolView
from moonpool.router.prompt import Prompt, RoutedRequest
from moonpool.router.text import TextPrompts
from moonpool.router.usage import Usage


class TokenPrompts(Protocol):
    """Turns requests into token ids and block hashes."""

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
        if self.pool is None or not request.prompt.hashes:
            return
        try:
            async with asyncio.timeout(self._pool_wait_s):
                blocks = await self.pool.prefix(request.prompt.hashes)
        except TimeoutError:
            self._metrics.pool_lookups.labels("late").inc()
            return
        self._metrics.pool_lookups.labels("hit" if blocks else "miss").inc()
        request.pool_tokens = blocks * request.prompt.block_tokens

    def learn(self, prompt: Prompt, usage: Usage) -> None:
        """Take what an engine counted at the end of its answer."""
        self._metrics.prompt_tokens.inc(usage.prompt_tokens)
        self._metrics.cached_tokens.inc(usage.cached_tokens or 0)
        if not prompt.exact:
            self.text.learn(prompt, usage.prompt_tokens)
        elif self.tokens is not None and not self.tokens.counted(prompt, usage.prompt_tokens):
            self._metrics.tokenizer_mismatches.inc()

    def describe(self) -> dict[str, object]:
        """Return how prompts are known, for people."""
        return {
            "prompts": self.tokens.describe()
            if self.tokens is not None
            else {"kind": "text", "why": "no tokenizer was asked for"},
            "bytes_per_token": round(self.text.bytes_per_token, 3),
            "pool": self.pool.describe() if self.pool is not None else None,
        }
