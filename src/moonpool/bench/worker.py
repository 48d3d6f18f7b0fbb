"""One client process of a benchmark: takes commands on stdin, answers on stdout, JSON by the line.

The parts that differ are in ``peer_moonpool`` and ``peer_mooncake``. The latter runs in an
interpreter that may lack what moonpool needs: import nothing here but NumPy and the standard
library.
"""

from __future__ import annotations

import json
import os
import sys
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from moonpool.bench.batch import Batch, Bytes, mismatches, random_bytes, stamp

Answer = dict[str, Any]
SMALL_ROOM_BYTES = 16 << 20
FILL_BYTES = 64
FILL_BATCH = 5000


class Client(ABC):
    """What a driver measures; every get is compared with what was put."""

    def __init__(self) -> None:
        self.name = ""
        self.batch = Batch(1, 1, 8)
        self.source: Bytes = np.zeros(8, np.uint8)
        self.target: Bytes = np.zeros(8, np.uint8)
        self.small: Bytes = np.zeros(8, np.uint8)

    # --- what a peer does ---------------------------------------------------------------------

    @abstractmethod
    def connect(self, settings: dict[str, Any]) -> Answer:
        """Connect; return what is to be told about it."""

    @abstractmethod
    def use(self, memory: Bytes) -> None:
        """Make memory known for zero-copy calls."""

    @abstractmethod
    def drop(self, memory: Bytes) -> None:
        """Undo ``use``."""

    @abstractmethod
    def arrange(self, name: str) -> None:
        """Prepare keys and descriptors for the batch at ``source`` and ``target``."""

    @abstractmethod
    def put_batch(self) -> Iterable[int]:
        """Put the batch from ``source``; return the failures' codes."""

    @abstractmethod
    def get_batch(self) -> Iterable[int]:
        """Get the batch into ``target``; return the failures' codes."""

    @abstractmethod
    def exists_batch(self) -> int:
        """Return how many of the batch's objects there are."""

    @abstractmethod
    def remove_batch(self) -> None:
        """Remove the batch's objects, leased or not."""

    @abstractmethod
    def put_many(self, name: str, first: int, memory: Bytes, nbytes: int) -> Iterable[int]:
        """Put objects of ``nbytes`` from memory, numbered from ``first``; return the failures."""

    @abstractmethod
    def lookup(self, name: str, count: int) -> Callable[[], int]:
        """Return a call that tells how many leading objects of ``put_many`` there are."""

    @abstractmethod
    def put_small(self, number: int, memory: Bytes) -> int:
        """Put one object; return its code."""

    @abstractmethod
    def get_small(self, number: int, memory: Bytes) -> int:
        """Get one object; return its code."""

    @abstractmethod
    def clear(self) -> None:
        """Remove all objects."""

    @abstractmethod
    def close(self) -> None:
        """Disconnect."""

    # --- commands -----------------------------------------------------------------------------

    def do_connect(self, settings: dict[str, Any]) -> Answer:
        """Connect and get memory for single objects."""
        answer = self.connect(settings)
        self.small = random_bytes(2 * SMALL_ROOM_BYTES, seed=3)
        self.use(self.small)
        return answer

    def do_batch(self, batch: dict[str, int], seed: int) -> Answer:
        """Get memory for a batch, filled with random bytes."""
        if self.batch.nbytes > 8:
            self.drop(self.source)
            self.drop(self.target)
        self.batch = Batch(**batch)
        self.source = random_bytes(self.batch.nbytes, seed)
        self.target = np.ones(self.batch.nbytes, np.uint8)
        self.use(self.source)
        self.use(self.target)
        self.name = f"batch-{seed}"
        self.arrange(self.name)
        return {}

    def do_put(self, at: float = 0.0) -> Answer:
        """Put the batch, with bytes that were never put before."""
        self.remove_batch()
        stamp(self.source)
        return timed(self.put_batch, at)

    def do_get(self, at: float = 0.0) -> Answer:
        """Get the batch and compare."""
        self.target[:] = 0
        answer = timed(self.get_batch, at)
        return answer | {
            "mismatches": mismatches(self.source, self.target),
            "verified": len(self.source),
        }

    def do_exists(self, at: float = 0.0) -> Answer:
        """Ask for all objects of the batch."""
        found = [0]

        def ask() -> list[int]:
            found[0] = self.exists_batch()
            return []

        answer = timed(ask, at)
        return answer | {"wrong": self.batch.objects - found[0]}

    def do_fill(self, name: str, count: int, nbytes: int = FILL_BYTES) -> Answer:
        """Put so many small objects."""
        failed: Counter[int] = Counter()
        step = min(FILL_BATCH, SMALL_ROOM_BYTES // nbytes)
        for first in range(0, count, step):
            part = self.small[: min(step, count - first) * nbytes]
            failed.update(self.put_many(name, first, part, nbytes))
        return {"failed": dict(failed)}

    def do_lookup(
        self,
        name: str,
        count: int,
        present: int,
        calls: int = 0,
        seconds: float = 0.0,
        at: float = 0.0,
    ) -> Answer:
        """Look a prefix up so often, or for so long; without a name in the batch's keys."""
        ask = self.lookup(name or self.name, count)
        wrong = int(ask() != present)
        taken: list[float] = []
        wait_until(at)
        cpu, begin = time.process_time(), time.monotonic()
        end = begin
        while len(taken) < calls or end - begin < seconds:
            before = end
            wrong += ask() != present
            end = time.monotonic()
            taken.append(end - before)
        cpu = time.process_time() - cpu
        return {"begin": begin, "end": end, "cpu": cpu, "wrong": wrong, "taken": taken}

    def do_small(
        self, verb: str, nbytes: int, first: int, calls: int, pause_s: float = 0.0
    ) -> Answer:
        """Put or get single objects one after the other, with a pause before each."""
        source, target = self.small[:nbytes], self.small[SMALL_ROOM_BYTES:][:nbytes]
        taken: list[float] = []
        failed: Counter[int] = Counter()
        wrong = 0
        for number in range(first, first + calls):
            source.view(np.uint64)[0] = number
            target[:] = 0
            if pause_s:
                time.sleep(pause_s)
            before = time.perf_counter()
            if verb == "put":
                code = self.put_small(number, source)
            else:
                code = self.get_small(number, target)
            taken.append(time.perf_counter() - before)
            failed.update([code] if code else [])
            wrong += mismatches(source, target) if verb == "get" else 0
        verified = nbytes * calls if verb == "get" else 0
        return {"taken": taken, "failed": dict(failed), "mismatches": wrong, "verified": verified}

    def do_clear(self) -> Answer:
        """Remove all objects."""
        self.clear()
        return {}


def timed(action: Callable[[], Iterable[int]], at: float) -> Answer:
    """Run an action that returns failures' codes, from the moment ``at`` on."""
    wait_until(at)
    cpu, begin = time.process_time(), time.monotonic()
    codes = action()
    end = time.monotonic()
    cpu = time.process_time() - cpu
    return {"begin": begin, "end": end, "cpu": cpu, "failed": dict(Counter(codes))}


def wait_until(at: float) -> None:
    """Wait until ``time.monotonic()`` is ``at``; several processes begin together so."""
    left = at - time.monotonic()
    if left > 0:
        time.sleep(left)


def serve(client: Client, extra: dict[str, Callable[..., Answer]] | None = None) -> None:
    """Answer commands until stdin ends."""
    # Libraries print to stdout: they get stderr, and the answers a descriptor of their own.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    known = {n[3:]: getattr(client, n) for n in dir(client) if n.startswith("do_")} | (extra or {})
    try:
        for line in sys.stdin:
            command = json.loads(line)
            try:
                answer = known[command.pop("do")](**command)
            except Exception as error:  # noqa: BLE001 - whatever a peer's library raises
                answer = {"error": f"{type(error).__name__}: {error}"}
            answers.write(json.dumps(answer) + "\n")
            answers.flush()
    finally:
        client.close()
