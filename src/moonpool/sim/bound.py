"""What no placement can pass: the hits of one cache that has all engines' memory together."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from itertools import islice

from moonpool.sim.job import Job

NEVER = 1 << 60


def shared_lru(jobs: Sequence[Job], blocks: int, block_tokens: int, begin_s: float = 0.0) -> float:
    """Return the hit rate of one cache of ``blocks`` that forgets the least recently used, leaves
    first; of the jobs that arrive from ``begin_s`` on, in the order of arrival.

    Engines that forget the same way have together no more than this, unless by luck.
    """
    kept: dict[int, None] = {}
    hits = tokens = 0
    for job in jobs:
        found = 0
        for key in job.keys:
            if key not in kept:
                break
            found += 1
        for key in reversed(job.keys):
            kept.pop(key, None)
            kept[key] = None
        if len(kept) > blocks:
            for key in list(islice(kept, len(kept) - blocks)):
                del kept[key]
        if job.arrived_s >= begin_s:
            hits += min(found * block_tokens, job.prompt_tokens - 1)
            tokens += job.prompt_tokens
    return hits / tokens if tokens else 0.0


def shared_best(jobs: Sequence[Job], blocks: int, block_tokens: int, begin_s: float = 0.0) -> float:
    """Return the same for a cache that knows the future: it forgets what is needed last, and does
    not even keep what is needed later than all it has. No placement and no eviction have more."""
    following = _next_uses(jobs)
    kept: dict[int, int] = {}
    latest: list[tuple[int, int]] = []
    hits = tokens = 0
    for place, job in enumerate(jobs):
        found = 0
        for key in job.keys:
            if key not in kept:
                break
            found += 1
        for key in job.keys:
            due = following.pop((place, key), NEVER)
            if due == NEVER:
                kept.pop(key, None)
                continue
            kept[key] = due
            heapq.heappush(latest, (-due, -key))
        while len(kept) > blocks:
            due, key = heapq.heappop(latest)
            if kept.get(-key) == -due:
                del kept[-key]
        if job.arrived_s >= begin_s:
            hits += min(found * block_tokens, job.prompt_tokens - 1)
            tokens += job.prompt_tokens
    return hits / tokens if tokens else 0.0


def _next_uses(jobs: Sequence[Job]) -> dict[tuple[int, int], int]:
    """Return for each job (by place) and key the place of the next job with that key."""
    following: dict[tuple[int, int], int] = {}
    seen: dict[int, int] = {}
    for place, job in enumerate(jobs):
        for key in job.keys:
            before = seen.get(key)
            if before is not None:
                following[before, key] = place
            seen[key] = place
    return following
