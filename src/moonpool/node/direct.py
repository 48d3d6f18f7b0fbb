"""Reading from a node's disk for clients, past its memory: where that has no room.

Bytes pass through a few buffers, one for each request that is being answered, and are compared with
their checksums before they are sent. What the disk does not bring in time is a failure of that
request; its buffer comes back when the disk does.
"""

from __future__ import annotations

import mmap
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from moonpool.errors import TransferError
from moonpool.node.crew import Crew
from moonpool.ssd.pace import Pace
from moonpool.ssd.reading import GONE, Wanted
from moonpool.ssd.records import Record, padded
from moonpool.ssd.shelf import Shelf

BUFFERS = 4
BUFFER_BYTES = 8 * 1024 * 1024
"""A larger object has memory of its own for as long as it is sent."""
THREADS = 2
WAIT_S = 3.0
"""For a buffer: others are served, or the disk does not answer."""
DISK_S = 10.0


class Job:
    """Objects to read into a buffer. ``reasons`` are there once it is ``done``."""

    def __init__(self, wanted: Sequence[Wanted], finish: Callable[[], None]) -> None:
        self.wanted = wanted
        self.reasons: list[str] = [GONE] * len(wanted)
        self._finish = finish
        self._lock = threading.Condition()
        self._done = self._left = False

    def end(self) -> None:
        """Say that the disk does not write into the buffer any more."""
        with self._lock:
            self._done = True
            self._lock.notify_all()
            left = self._left
        if left:
            self._finish()

    def wait(self, seconds: float) -> bool:
        """Tell whether it was done in time; if not, ``finish`` is called when it is."""
        with self._lock:
            self._left = not self._lock.wait_for(lambda: self._done, seconds)
            return not self._left


class DirectReads:
    """Threads that read, and the buffers."""

    def __init__(self, shelf: Shelf, pace: Pace) -> None:
        """pace: lets what is written to the disk wait."""
        self._shelf = shelf
        self._pace = pace
        self._free = threading.Condition()
        self._buffers: list[mmap.mmap | None] = [None] * BUFFERS
        self._crew: Crew[Job] = Crew("disk-direct", self._read, threads=THREADS)

    def start(self) -> None:
        """Begin to work."""
        self._crew.start()

    def close(self, timeout_s: float) -> None:
        """Stop after what is under way."""
        self._crew.close(timeout_s)

    def find(self, generations: Sequence[int], sizes: Sequence[int]) -> list[Record | None]:
        """Return the objects of these generations and sizes, None for what is not there."""
        found = self._shelf.of_generations(generations)
        pairs = zip(found, sizes, strict=True)
        return [each if each is not None and each.size == size else None for each, size in pairs]

    def batches(self, records: Sequence[Record]) -> Iterator[list[Record]]:
        """Cut objects into what fits into a buffer; an object that does not is alone."""
        batch: list[Record] = []
        total = 0
        for record in records:
            if batch and total + padded(record.size) > BUFFER_BYTES:
                yield batch
                batch, total = [], 0
            batch.append(record)
            total += padded(record.size)
        if batch:
            yield batch

    @contextmanager
    def reading(self, batch: Sequence[Record]) -> Iterator[tuple[list[int], list[str]]]:
        """Read a batch; yield the objects' addresses and why they could not be read, if so. The
        memory is theirs for the length of the block. Raises TransferError."""
        room = [padded(each.size) for each in batch]
        memory = self._take(sum(room))
        base = int(np.frombuffer(memory, np.uint8).ctypes.data)
        at = [base + sum(room[:i]) for i in range(len(room))]
        wanted = [
            Wanted(each.key, each.generation, each.size, each.checksum, address)
            for each, address in zip(batch, at, strict=True)
        ]
        job = Job(wanted, lambda: self._give(memory))
        self._crew.add([job])
        if not job.wait(DISK_S):
            raise TransferError(f"the disk has not answered for {DISK_S} s")
        try:
            yield at, job.reasons
        finally:
            self._give(memory)

    def _read(self, jobs: list[Job]) -> None:
        for job in jobs:
            try:
                with self._pace.reading():
                    job.reasons = self._shelf.read(job.wanted)
            finally:
                job.end()

    def _take(self, nbytes: int) -> mmap.mmap:
        with self._free:
            if not self._free.wait_for(lambda: self._buffers, WAIT_S):
                raise TransferError("the disk is busy with other reads")
            buffer = self._buffers.pop()
        if nbytes > BUFFER_BYTES or buffer is None:
            return mmap.mmap(-1, max(nbytes, BUFFER_BYTES))
        return buffer

    def _give(self, memory: mmap.mmap) -> None:
        with self._free:
            self._buffers.append(memory if len(memory) == BUFFER_BYTES else None)
            self._free.notify()
