"""What endpoints say of themselves: model, context, engines behind them."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import msgspec

from moonpool.bench.e2e.fetch import NO_ANSWER, fetch
from moonpool.bench.e2e.options import base_url
from moonpool.errors import ConfigError

ASK_S = 15.0
VOCABULARY = 32_000
"""Where nobody says: what nearly every model has at least."""


class _Card(msgspec.Struct):
    id: str
    root: str | None = None
    max_model_len: int | None = None


class _Cards(msgspec.Struct):
    data: list[_Card]


class _Instance(msgspec.Struct):
    url: str


class _Health(msgspec.Struct):
    instances: list[_Instance] = []


@dataclass(frozen=True, slots=True)
class Served:
    """A model that is served. context_tokens: 0 where the endpoint does not say."""

    model: str
    context_tokens: int
    vocabulary: int


async def served(http: aiohttp.ClientSession, url: str, model: str = "") -> Served:
    """Return the endpoint's model of that name, or its only one; raise ConfigError."""
    try:
        cards = msgspec.json.decode(await fetch(http, f"{url}/v1/models", ASK_S), type=_Cards).data
    except NO_ANSWER as error:
        reason = str(error) or type(error).__name__
        raise ConfigError(
            f"endpoint: {url} does not say at /v1/models what it serves ({reason})"
        ) from None
    chosen = [card for card in cards if not model or card.id == model]
    if not chosen:
        names = ", ".join(card.id for card in cards) or "none"
        raise ConfigError(f"model: {url} does not serve {model!r}; allowed: {names}")
    card = chosen[0]
    return Served(card.id, card.max_model_len or 0, vocabulary_of(card.root or ""))


def vocabulary_of(root: str) -> int:
    """Return how many tokens the model in a directory knows; VOCABULARY where that is not said."""
    with contextlib.suppress(OSError, ValueError, TypeError, AttributeError):
        config = json.loads((Path(root) / "config.json").read_text())
        size = config.get("vocab_size") or config["text_config"]["vocab_size"]
        if isinstance(size, int) and size >= 2:
            return size
    return VOCABULARY


async def engines_behind(http: aiohttp.ClientSession, urls: Sequence[str]) -> list[str]:
    """Return the engines to read counters from: those of moonpool's routers, else the endpoints
    themselves."""
    found: dict[str, None] = {}
    for url in urls:
        behind: list[str] = []
        with contextlib.suppress(*NO_ANSWER):
            health = msgspec.json.decode(
                await fetch(http, f"{url}/health", ASK_S) or b"{}", type=_Health
            )
            with contextlib.suppress(ConfigError):
                behind = [base_url(each.url) for each in health.instances]
        found |= dict.fromkeys(behind or [url])
    return list(found)
