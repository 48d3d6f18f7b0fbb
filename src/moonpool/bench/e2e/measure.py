"""A measurement from its beginning to its end: warm-up, counters, the trace, counters again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import aiohttp

from moonpool.bench.e2e.counters import (
    POOL_PREFIXES,
    Counts,
    Hits,
    Page,
    grown,
    hits_of,
    page_of,
    settled,
)
from moonpool.bench.e2e.driver import Driver
from moonpool.bench.e2e.options import BY_REQUEST, CLOSED, Options
from moonpool.bench.e2e.record import Record
from moonpool.bench.e2e.summary import Summary, summarise
from moonpool.errors import MoonpoolError
from moonpool.workload.ideal import IdealCache
from moonpool.workload.prompts import Prompts
from moonpool.workload.selection import Item, Selection

BLOCK_TOKENS = 16
"""vLLM's own size of a block, where no engine says another."""
WARM_UP_TOKENS, WARM_UP_ANSWER = 64, 4

COMPLETE, INTERRUPTED, OUT_OF_TIME = "complete", "interrupted", "time limit"


class WarmUpError(MoonpoolError):
    """An endpoint that does not answer a first request."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run came to. engines and pools: what each counted in between, None where not told.
    pages: what engines said at the end."""

    ended: str
    records: list[Record]
    summary: Summary
    hits: Hits
    engine_block_tokens: int
    engines: dict[str, Counts | None]
    pools: dict[str, Counts | None]
    pages: dict[str, Page | None]


@dataclass(frozen=True, slots=True)
class Sources:
    """Whose /metrics are read: engines' and masters' base URLs."""

    engines: Sequence[str]
    pools: Sequence[str] = ()
    block_tokens: int = 0


async def measure(
    options: Options,
    selection: Selection,
    prompts: Prompts,
    sources: Sources,
    *,
    warm_up: int = 1,
    watch: Callable[[Driver], None] = lambda driver: None,
    done: Callable[[Record], None] = lambda record: None,
) -> Outcome:
    """Send a selection; where this is cancelled, return what was until then. warm_up: requests to
    each endpoint before, which count nowhere. watch: is given the driver before it begins."""
    async with aiohttp.ClientSession() as http:
        await _warm_up(options, prompts, warm_up)
        before = await settled(http, sources.engines)
        pools_before = [await page_of(http, url, POOL_PREFIXES) for url in sources.pools]
        driver = Driver(options, prompts, done)
        watch(driver)
        ended = await _run(driver, selection)
        after = await settled(http, sources.engines)
        pools_after = await settled(http, sources.pools, POOL_PREFIXES) if sources.pools else []
    engines = _grown(sources.engines, before, after)
    block_tokens = sources.block_tokens or _block_tokens(before)
    note_ideal(driver.records, selection, prompts, block_tokens)
    return Outcome(
        ended,
        driver.records,
        summarise(driver.records),
        hits_of(list(engines.values()), driver.records),
        block_tokens,
        engines,
        _grown(sources.pools, pools_before, pools_after),
        dict(zip(sources.engines, after, strict=True)),
    )


async def _run(driver: Driver, selection: Selection) -> str:
    try:
        return COMPLETE if await driver.run(selection) else OUT_OF_TIME
    except asyncio.CancelledError:
        # Whoever has ended it wants to see what there is. It happens once (run_until_signal).
        task = asyncio.current_task()
        if task is not None:
            task.uncancel()
        return INTERRUPTED


async def _warm_up(options: Options, prompts: Prompts, count: int) -> None:
    """Let every endpoint answer something that no trace holds; raise WarmUpError."""
    for url in options.endpoints if count else ():
        one = replace(
            options, endpoints=(url,), mode=CLOSED, balance=BY_REQUEST, concurrency=1, limit_s=0.0
        )
        driver = Driver(one, prompts)
        await driver.run(Selection([_warm_up_item(url, turn) for turn in range(count)]))
        for each in driver.records:
            if each.error:
                raise WarmUpError(f"{url} does not answer: {each.error}: {each.reason}")


def _warm_up_item(url: str, turn: int) -> Item:
    import numpy as np

    scope = f"\0warm-up/{url}"
    blocks = np.array([turn], dtype=np.int64)
    size = WARM_UP_TOKENS
    return Item(scope, turn, 0.0, 0.0, size, WARM_UP_ANSWER, size, scope, blocks)


def _block_tokens(pages: Sequence[Page | None]) -> int:
    sizes = [page.block_tokens for page in pages if page is not None and page.block_tokens]
    return sizes[0] if sizes else BLOCK_TOKENS


def _grown(
    urls: Sequence[str], before: Sequence[Page | None], after: Sequence[Page | None]
) -> dict[str, Counts | None]:
    pairs = zip(urls, before, after, strict=True)
    return {url: grown(one, other) for url, one, other in pairs}


def note_ideal(
    records: Sequence[Record], selection: Selection, prompts: Prompts, block_tokens: int
) -> None:
    """Fill in what one cache for all that forgets nothing would have had, in order of sending."""
    items = {(item.session, item.turn): item for item in selection.items}
    cache = IdealCache(block_tokens)
    for record in sorted(records, key=lambda each: (each.sent_s, each.number)):
        prompt = prompts.prompt(items[record.session, record.turn])
        record.ideal_tokens = cache.could_hit(prompt)
        cache.add(prompt)
