"""What the data-path check puts and expects back: keys, and bytes that follow from them."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from moonpool.errors import ConfigError

Bytes = NDArray[np.uint8]
WRITE, READ, BOTH = "write", "read", "both"
ROLES = (WRITE, READ, BOTH)
PROCESSES_MAX = 1024


class Plan(msgspec.Struct, frozen=True):
    """A run, the same on all of its hosts. Every batch of a writer is read by one reader.

    writers, readers: processes of all hosts together. objects: of each writer. nbytes: of an
    object. batch: objects in a call. ahead: batches that a writer may be ahead of its readers,
    which then remove what they have read; 0: any number, and nothing is removed. wait_s: how long a
    reader waits for a batch, and a writer for its readers. limit_s: the run ends then.
    """

    run: str
    writers: int
    readers: int
    objects: int
    nbytes: int
    batch: int
    ahead: int
    wait_s: float
    limit_s: float
    put_timeout_s: float

    @property
    def batches(self) -> int:
        """Of each writer."""
        return -(-self.objects // self.batch)

    def numbers(self, batch: int) -> range:
        """Return the numbers of a batch's objects."""
        return range(batch * self.batch, min(self.objects, (batch + 1) * self.batch))

    def reader_of(self, writer: int, batch: int) -> int:
        """Return who reads a batch."""
        return (writer + batch) % self.readers

    def read_by(self, reader: int) -> Iterator[tuple[int, int]]:
        """Yield the writer and batch of all that a reader reads, in the order of writing."""
        for batch in range(self.batches):
            for writer in range(self.writers):
                if self.reader_of(writer, batch) == reader:
                    yield writer, batch

    def key(self, writer: int, number: int) -> str:
        """Return an object's key; no other object of any run has it."""
        return f"stress/{self.run}/{writer}/{number}"

    def note_key(self, writer: int, batch: int) -> str:
        """Return the key of the note that says which objects of a batch were put."""
        return f"stress/{self.run}/{writer}/batch/{batch}"

    def fill(self, target: Bytes, writer: int, number: int) -> None:
        """Write an object's bytes, which follow from its key, into memory."""
        seed = xxhash.xxh3_64_intdigest(self.key(writer, number).encode())
        words = np.random.SFC64(seed).random_raw(-(-len(target) // 8))
        target[:] = words.view(np.uint8)[: len(target)]


def plan_of(**given: Any) -> Plan:
    """Return a plan with a name of its own where none is given; raise ConfigError."""
    run = given.pop("run") or uuid.uuid4().hex[:12]
    if not run.isascii() or not run.replace("-", "").replace("_", "").isalnum() or len(run) > 64:
        raise ConfigError(f"run: {run!r} is not allowed; allowed: up to 64 letters and digits")
    return Plan(run=run, **given)


class Share(msgspec.Struct, frozen=True):
    """Which of a run's processes are this host's: those with ``number % hosts == host``."""

    role: str
    host: int = 0
    hosts: int = 1

    def processes(self, plan: Plan) -> list[tuple[str, int]]:
        """Return the role and number of each process to start here."""
        counts = {WRITE: plan.writers, READ: plan.readers}
        return [
            (role, number)
            for role, count in counts.items()
            if self.role in (role, BOTH)
            for number in range(count)
            if number % self.hosts == self.host
        ]


def share_of(role: str, part: str) -> Share:
    """Return what ``--role`` and ``--part I/N`` mean; raise ConfigError."""
    if role not in ROLES:
        raise ConfigError(f"role: {role!r} is not allowed; allowed: {', '.join(ROLES)}")
    first, _, second = part.partition("/")
    if not (first.isdecimal() and second.isdecimal() and 1 <= int(first) <= int(second) <= 1024):
        raise ConfigError(f"part: {part!r} is not allowed; allowed: 1/1, 1/2, 2/2 and so on")
    return Share(role, int(first) - 1, int(second))
