"""What engines and the pool count themselves, before and after."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from moonpool.bench.e2e.fetch import NO_ANSWER, fetch
from moonpool.bench.e2e.record import Record

PAGE_S = 10.0
SETTLE_S, SETTLED_MAX_S = 0.3, 5.0
ENGINE_PREFIXES = (
    "vllm:prefix_cache_",
    "vllm:external_prefix_cache_",
    "vllm:prompt_tokens_by_source",
    "vllm:num_preemptions",
    "vllm:moonpool_",
)
POOL_PREFIXES = ("moonpool_",)
BLOCK_INFO = "vllm:cache_config_info"
QUERIES, HBM_HITS = "vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total"
POOL_HITS = "vllm:external_prefix_cache_hits_total"

Counts = Mapping[str, float]
"""Counters by name; a label that tells sources or kinds apart is part of it."""


@dataclass(frozen=True, slots=True)
class Page:
    """What one /metrics page says. block_tokens, kv_blocks: 0 where it does not."""

    counts: Counts
    block_tokens: int = 0
    kv_blocks: int = 0


def parse(text: str, prefixes: Sequence[str]) -> Page:
    """Return the counters whose names begin so; raise ValueError for what is no such page."""
    counts: dict[str, float] = {}
    shape = {"block_size": 0, "num_gpu_blocks": 0}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == BLOCK_INFO:
                said = {name: sample.labels.get(name, "") for name in shape}
                shape |= {name: int(text) for name, text in said.items() if text.isdecimal()}
            if not sample.name.endswith("_total") or not sample.name.startswith(tuple(prefixes)):
                continue
            kind = sample.labels.get("source") or sample.labels.get("kind") or ""
            name = f"{sample.name}{{{kind}}}" if kind else sample.name
            counts[name] = counts.get(name, 0.0) + sample.value
    return Page(counts, shape["block_size"], shape["num_gpu_blocks"])


async def page_of(
    http: aiohttp.ClientSession, url: str, prefixes: Sequence[str] = ENGINE_PREFIXES
) -> Page | None:
    """Return what the server at ``url`` counts; None where it does not tell."""
    try:
        text = (await fetch(http, f"{url}/metrics", PAGE_S)).decode(errors="replace")
        return parse(text, prefixes)
    except NO_ANSWER:
        return None


async def settled(
    http: aiohttp.ClientSession, urls: Sequence[str], prefixes: Sequence[str] = ENGINE_PREFIXES
) -> list[Page | None]:
    """Return the pages once they no longer change, or after SETTLED_MAX_S: an engine counts a
    little after it answers."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + SETTLED_MAX_S
    before = [await page_of(http, url, prefixes) for url in urls]
    while True:
        await asyncio.sleep(SETTLE_S)
        now = [await page_of(http, url, prefixes) for url in urls]
        if now == before or loop.time() > deadline:
            return now
        before = now


def grown(before: Page | None, after: Page | None) -> Counts | None:
    """Return what was counted in between; None where that cannot be told, as after a restart."""
    if before is None or after is None:
        return None
    found = {name: value - before.counts.get(name, 0.0) for name, value in after.counts.items()}
    if any(value < 0 for value in found.values()) or before.counts.keys() - after.counts.keys():
        return None
    return found


@dataclass(frozen=True, slots=True)
class Hits:
    """Prompt tokens by where their KV came from, as the engines count; None: they do not say.

    answered_cached: what answers said was cached (of HBM and pool together), of prompt_tokens of
    the same answers. ideal: what one cache for all that forgets nothing would have had.
    """

    queries: float | None
    hbm: float | None
    pool: float | None
    answered_cached: int | None
    answered_tokens: int
    ideal: int
    prompt_tokens: int

    @property
    def recomputed(self) -> float | None:
        """What was computed."""
        if self.queries is None or self.hbm is None:
            return None
        return self.queries - self.hbm - (self.pool or 0.0)

    @property
    def hit_rate(self) -> float | None:
        """By the engines' counters; where they have none, by the answers."""
        if self.queries and self.hbm is not None:
            return (self.hbm + (self.pool or 0.0)) / self.queries
        return self.answers_rate

    @property
    def answers_rate(self) -> float | None:
        """By the answers."""
        if self.answered_cached is None or not self.answered_tokens:
            return None
        return self.answered_cached / self.answered_tokens

    @property
    def ideal_rate(self) -> float:
        """The most that could have been."""
        return self.ideal / self.prompt_tokens if self.prompt_tokens else 0.0

    def rate(self, tokens: float | None) -> float | None:
        """Return a share of the prompt tokens that engines looked up."""
        return tokens / self.queries if self.queries and tokens is not None else None


def hits_of(engines: Sequence[Counts | None], records: Sequence[Record]) -> Hits:
    """Return where the prompts' KV came from."""
    answered = [each for each in records if each.answered]
    told = [each for each in answered if each.cached_tokens is not None]
    known = [each for each in engines if each is not None and QUERIES in each]
    complete = bool(known) and len(known) == len(engines)

    def total(name: str) -> float | None:
        return sum(each.get(name, 0.0) for each in known) if complete else None

    return Hits(
        queries=total(QUERIES),
        hbm=total(HBM_HITS),
        pool=total(POOL_HITS),
        answered_cached=sum(each.cached_tokens or 0 for each in told) if told else None,
        answered_tokens=sum(each.prompt_tokens for each in told),
        ideal=sum(each.ideal_tokens for each in answered),
        prompt_tokens=sum(each.prompt_tokens for each in answered),
    )
