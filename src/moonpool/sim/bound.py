"""What placement can hope for: the hits of one cache that has all engines' memory together."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from moonpool.sim.job import Job


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
