"""The chunks of a batch, several at once."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Sequence

from moonpool.transport import copy


def in_turn(
    work: Callable[[int, int], None], ranges: Sequence[tuple[int, int]], workers: int
) -> None:
    """Call ``work`` with every range, in up to so many threads that take the next one each.

    After an exception no range is begun any more; when all that were begun have ended, the first
    exception is raised.
    """
    workers = min(workers, len(ranges))
    if workers <= 1:
        for first, last in ranges:
            work(first, last)
        return
    turns = _Turns(work, ranges)
    with copy.beside(workers):
        helpers = turns.helped_by(workers - 1)
        try:
            turns.run()
        finally:
            turns.stopped = True
            for helper in helpers:
                helper.join()
    if turns.failed:
        raise turns.failed[0]


class _Turns:
    def __init__(self, work: Callable[[int, int], None], ranges: Sequence[tuple[int, int]]) -> None:
        self._work = work
        self._left = iter(ranges)
        self._lock = threading.Lock()
        self.stopped = False
        self.failed: list[Exception] = []

    def helped_by(self, count: int) -> list[threading.Thread]:
        """Start threads, in the context of this one, as far as there are more to be had."""
        helpers = []
        for _ in range(count):
            run = contextvars.copy_context().run
            helper = threading.Thread(target=run, args=(self.run,), name="moonpool-chunks")
            try:
                helper.start()
            except RuntimeError:  # no more threads
                break
            helpers.append(helper)
        return helpers

    def run(self) -> None:
        """Take ranges until none is left or one failed."""
        while not self.stopped:
            with self._lock:
                taken = next(self._left, None)
            if taken is None:
                return
            try:
                self._work(*taken)
            except Exception as error:  # noqa: BLE001 - raised by in_turn
                self.stopped = True
                self.failed.append(error)
