"""One process of the data-path check: ``python -m moonpool.bench.stress_worker``.

Its order comes as JSON on standard input; what it has done goes to standard output, a line after
each batch, each with all counts so far.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import numpy as np

from moonpool.bench.stress import WRITE, Bytes, Plan
from moonpool.client.store import Store
from moonpool.errors import InvalidArgumentError, MoonpoolError, NotFoundError, error_for
from moonpool.transport.base import Pieces

POLL_S = 0.02
SHOWN_MAX = 5


class Order(msgspec.Struct, frozen=True):
    """What a process is to do. master, transports: as Store.connect takes them."""

    plan: Plan
    role: str
    number: int
    master: str
    transports: tuple[str, ...] = ("shm", "tcp")


class Counts(msgspec.Struct):
    """What a process has done. Each object counts once: as good (put; or read and every byte
    compared), or under one reason. passed: seconds of each call. unread: objects that a reader was
    to read and that no writer put. ended: the run was over before all was done."""

    role: str
    number: int
    good: int = 0
    nbytes: int = 0
    unread: int = 0
    failures: dict[str, int] = {}
    shown: list[str] = []
    passed: list[float] = []
    done: bool = False
    ended: str = ""


class Ended(Exception):
    """The run is over for this process; the text says why."""


class Worker:
    """Puts or gets batches, and counts."""

    def __init__(self, order: Order, store: Store, tell: Callable[[Counts], None]) -> None:
        self.plan, self.number, self.store = order.plan, order.number, store
        self.counts = Counts(order.role, order.number, failures=Counter())
        self.stopped = False
        self._tell = tell
        self._deadline = time.monotonic() + (self.plan.limit_s or float("inf"))
        self._memory: Bytes = np.zeros(self.plan.batch * self.plan.nbytes, np.uint8)
        self._expected: Bytes = np.zeros(self.plan.nbytes, np.uint8)
        store.register_buffer(self._memory)

    def run(self) -> None:
        """Do all of it, or until the time is over."""
        work = self._write if self.counts.role == WRITE else self._read
        with contextlib.suppress(Ended):
            work()
            self.counts.done = True
        self._tell(self.counts)

    # --- writing ------------------------------------------------------------------------------

    def _write(self) -> None:
        plan = self.plan
        for batch in range(plan.batches):
            if plan.ahead and batch >= plan.ahead:
                read = plan.note_key(self.number, batch - plan.ahead)
                if not self._until(read, there=False):
                    self._end("its readers do not come after")
            self._write_batch(batch)
            self._tell(self.counts)

    def _write_batch(self, batch: int) -> None:
        plan, numbers = self.plan, self.plan.numbers(batch)
        for place, number in enumerate(numbers):
            plan.fill(self._part(place), self.number, number)
        keys = [plan.key(self.number, number) for number in numbers]
        codes = self._timed(
            lambda pieces: self.store.put_pieces(keys, pieces, timeout_s=plan.put_timeout_s),
            len(keys),
        )
        self._count(keys, codes)
        note = bytes(code == 0 for code in codes)
        with self._telling(f"the note of batch {batch}"):
            self.store.put(plan.note_key(self.number, batch), note)

    # --- reading ------------------------------------------------------------------------------

    def _read(self) -> None:
        away: set[int] = set()
        for writer, batch in self.plan.read_by(self.number):
            note = self._note(writer, batch, wait=writer not in away)
            if note is None:
                # Whoever has ended will not put what is left: that is waited for once.
                away.add(writer)
                self.counts.unread += len(self.plan.numbers(batch))
            else:
                self._read_batch(writer, batch, note)
            self._tell(self.counts)

    def _note(self, writer: int, batch: int, *, wait: bool) -> bytes | None:
        key = self.plan.note_key(writer, batch)
        if wait:
            self._until(key, there=True)
        self._check_time()
        try:
            return self.store.get(key)
        except NotFoundError:
            return None
        except MoonpoolError as error:
            self._note_failure(key, error.code)
            return None

    def _read_batch(self, writer: int, batch: int, note: bytes) -> None:
        plan, numbers = self.plan, self.plan.numbers(batch)
        put = [number for number, there in zip(numbers, note, strict=True) if there]
        self.counts.unread += len(numbers) - len(put)
        keys = [plan.key(writer, number) for number in put]
        self._memory[:] = 0
        codes = self._timed(
            lambda pieces: self.store.get_pieces(keys, pieces, exact=True), len(keys)
        )
        for place, (number, code) in enumerate(zip(put, codes, strict=True)):
            if code == 0:
                plan.fill(self._expected, writer, number)
                if not np.array_equal(self._expected, self._part(place)):
                    codes[place] = 1
        self._count(keys, codes)
        if plan.ahead:
            with self._telling(f"the removal of batch {batch} of writer {writer}"):
                # First what it is of: a writer that sees no note may fill the room.
                self.store.remove_batch([*keys], force=True)
                self.store.remove(plan.note_key(writer, batch), force=True)

    # --- what both do -------------------------------------------------------------------------

    def _part(self, place: int) -> Bytes:
        return self._memory[place * self.plan.nbytes : (place + 1) * self.plan.nbytes]

    def _timed(self, call: Callable[[Pieces], Any], count: int) -> list[int]:
        """Return the code of each object; an exception is that of all of them."""
        if not count:
            return []
        self._check_time()
        first = self._memory.ctypes.data
        nbytes = self.plan.nbytes
        at = np.arange(count, dtype=np.uint64) * np.uint64(nbytes) + np.uint64(first)
        sizes = np.full(count, nbytes, np.uint64)
        pieces = Pieces(at, sizes, np.arange(count + 1, dtype=np.int64))
        began = time.monotonic()
        try:
            codes = [int(code) for code in call(pieces)]
        except InvalidArgumentError:
            raise
        except MoonpoolError as error:
            codes = [error.code] * count
        self.counts.passed.append(time.monotonic() - began)
        return codes

    def _count(self, keys: Sequence[str], codes: Sequence[int]) -> None:
        for key, code in zip(keys, codes, strict=True):
            if code == 0:
                self.counts.good += 1
                self.counts.nbytes += self.plan.nbytes
            else:
                self._note_failure(key, code)

    def _note_failure(self, key: str, code: int) -> None:
        name = "other bytes" if code == 1 else f"{type(error_for(code, '')).__name__} ({code})"
        self.counts.failures[name] = self.counts.failures.get(name, 0) + 1
        if len(self.counts.shown) < SHOWN_MAX:
            self.counts.shown.append(f"{key}: {name}")

    @contextlib.contextmanager
    def _telling(self, what: str) -> Iterator[None]:
        try:
            yield
        except MoonpoolError as error:
            self._note_failure(what, error.code)

    def _there(self, key: str) -> bool | None:
        try:
            return self.store.exists(key)
        except MoonpoolError:
            return None

    def _until(self, key: str, *, there: bool) -> bool:
        """Wait until an object is there, or is not; return whether that came."""
        deadline = time.monotonic() + self.plan.wait_s
        while self._there(key) is not there:
            self._check_time()
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL_S)
        return True

    def _check_time(self) -> None:
        if self.stopped:
            self._end("interrupted")
        if time.monotonic() > self._deadline:
            self._end("time limit")

    def _end(self, why: str) -> None:
        self.counts.ended = why
        raise Ended


def main() -> None:
    """Do what standard input says."""
    order = msgspec.json.decode(sys.stdin.buffer.readline(), type=Order)

    def tell(counts: Counts) -> None:
        sys.stdout.buffer.write(msgspec.json.encode(counts) + b"\n")
        sys.stdout.buffer.flush()

    name = f"stress-{order.role}-{order.number}"
    with Store.connect(order.master, name=name, transports=order.transports) as store:
        worker = Worker(order, store, tell)
        # Whoever is at the terminal ends all of the run's processes, which say what they have done.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: setattr(worker, "stopped", True))
        worker.run()


if __name__ == "__main__":
    main()
