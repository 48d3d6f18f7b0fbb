"""Transfers in the background, by number."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait

THREADS = 8
JOBS_MAX = 65_536
WAIT_S = 120.0
PENDING, FINISHED, FAILED = 0, 1, -1


class Jobs:
    """What was submitted and not yet asked for to the end."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(THREADS, "moonpool-engine-job")
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._jobs: dict[int, Future[int]] = {}

    def submit(self, transfer: Callable[[], int]) -> int:
        """Begin; return a number above 0, or 0 if there are too many."""
        with self._lock:
            if len(self._jobs) >= JOBS_MAX:
                return 0
            try:
                job = self._pool.submit(transfer)
            except RuntimeError:  # closed
                return 0
            number = next(self._numbers)
            self._jobs[number] = job
            return number

    def look(self, number: int) -> int:
        """Return PENDING, FINISHED or FAILED; a job that is not pending is forgotten."""
        with self._lock:
            job = self._jobs.get(number)
            if job is None:
                return FAILED
            if not job.done():
                return PENDING
            del self._jobs[number]
        return FINISHED if job.result() == 0 else FAILED

    def wait(self, numbers: list[int]) -> int:
        """Wait for jobs; return 0 if all succeeded, else -1. They are forgotten."""
        with self._lock:
            jobs = [self._jobs.pop(number, None) for number in numbers]
        there = [job for job in jobs if job is not None]
        done, late = wait(there, timeout=WAIT_S)
        failed = late or any(job.result() for job in done) or len(there) < len(jobs)
        return FAILED if failed else 0

    def close(self) -> None:
        """Take no more jobs; those that run end with their connections."""
        self._pool.shutdown(wait=False, cancel_futures=True)
