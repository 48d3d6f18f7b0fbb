"""Cutting a batch into chunks that travel on several connections at once."""

from __future__ import annotations

import contextvars
import itertools
import os
import threading
from collections.abc import Callable

import numpy as np

from moonpool.transport.base import U64

CHUNK_BYTES_MIN = 1024 * 1024
ITEMS_MAX = 4096
"""Objects in one message: with the longest keys and parents it still fits into a frame."""
STREAMS = max(2, min(4, os.cpu_count() or 1))
STEP_BYTES = 2 * 1024 * 1024
"""Received and hashed in turn, so that the hash reads from the cache."""
WIDER = ((0.020, 4), (0.004, 2))
"""From such a round trip (s) on, so many times the connections: what one holds on its way is
bounded by the kernel's send buffer (4 MiB unless the host is tuned), whatever the link carries."""
WIDE_PART_BYTES = 8 * 1024 * 1024
"""On long ways connections take such parts in turn: no fast one waits for a slow one."""


def width(streams: int, round_trip_s: float, most: int) -> int:
    """Return over how many connections a batch is spread."""
    factor = next((times for from_s, times in WIDER if round_trip_s >= from_s), 1)
    return max(streams, min(streams * factor, most))


def chunks(sizes: U64, streams: int) -> list[tuple[int, int]]:
    """Return at most ``streams`` ranges of objects, about equal in bytes."""
    count = len(sizes)
    if count <= 1:
        return [(0, 1)] * count
    done = np.cumsum(sizes, dtype=np.float64)
    if done[-1] < 2 * CHUNK_BYTES_MIN:
        return [(0, count)]
    parts = max(1, min(streams, int(done[-1]) // CHUNK_BYTES_MIN, count))
    wanted = np.arange(1, parts) * (done[-1] / parts)
    cuts = {0, count, *(np.searchsorted(done, wanted) + 1).tolist()}
    return list(itertools.pairwise(sorted(cut for cut in cuts if cut <= count)))


def steps(sizes: U64, step_bytes: int = STEP_BYTES) -> list[tuple[int, int]]:
    """Return ranges of objects of about ``step_bytes`` each; a larger object is one by itself."""
    count = len(sizes)
    if count <= 1:
        return [(0, 1)] * count
    done = np.cumsum(sizes, dtype=np.float64)
    if done[-1] <= step_bytes:
        return [(0, count)]
    group = (done - sizes) // step_bytes
    cuts = [0, *(np.flatnonzero(np.diff(group)) + 1).tolist(), count]
    return list(itertools.pairwise(cuts))


def run_all(jobs: list[Callable[[], None]]) -> None:
    """Run all jobs at once, the first in this thread; they must not raise."""
    helpers = []
    for job in jobs[1:]:
        run = contextvars.copy_context().run  # a copier is told by context what to wait for
        helper = threading.Thread(target=run, args=(job,), name="moonpool-stream")
        try:
            helper.start()
        except RuntimeError:  # no more threads
            job()
        else:
            helpers.append(helper)
    try:
        if jobs:
            jobs[0]()
    finally:
        for helper in helpers:
            helper.join()


def run_in_turn(
    workers: int, run: Callable[[int, int], None], ranges: list[tuple[int, int]]
) -> None:
    """Let so many threads, this one among them, take ranges one after the other; as ``run_all``."""
    turn, left = threading.Lock(), iter(ranges)

    def work() -> None:
        while True:
            with turn:
                limits = next(left, None)
            if limits is None:
                return
            run(*limits)

    run_all([work] * min(workers, len(ranges)))
