"""A node's disk beside what the machine's disk can do, in one run, taking turns.

The limit is fio where it is installed, else plain threads with O_DIRECT reads and writes of the
same sizes. Objects are written in batches as a node does, each batch durable before the next, and
read in any order, every byte compared with its checksum.
"""

from __future__ import annotations

import json
import mmap
import os
import random
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from moonpool.core.keys import pack
from moonpool.errors import ConfigError, MoonpoolError
from moonpool.ssd.local import LocalVolume
from moonpool.ssd.many import DEPTH as MANY_DEPTH
from moonpool.ssd.reading import STORED, Wanted
from moonpool.ssd.records import padded
from moonpool.ssd.shelf import DEPTH, Shelf
from moonpool.ssd.spans import Item
from moonpool.transport import native

BATCH_BYTES = 32 << 20
READ_BYTES = 16 << 20
READERS = 3
"""Batches and threads of a node."""
EXTENT_BYTES = 256 << 20
FIO_S = 300.0
READ_DEPTH = READERS * MANY_DEPTH


@dataclass(slots=True)
class Figures:
    """What one size of objects gave, in bytes a second, a figure a round."""

    size: int
    limit_write: list[float] = field(default_factory=list)
    write: list[float] = field(default_factory=list)
    limit_read: list[float] = field(default_factory=list)
    read: list[float] = field(default_factory=list)

    def ratio(self, what: str) -> float:
        """Return our median by the limit's, of ``write`` or ``read``."""
        ours, limit = getattr(self, what), getattr(self, f"limit_{what}")
        return float(statistics.median(ours) / statistics.median(limit))


@dataclass(slots=True)
class Report:
    """A run: which limit, on what, and the figures of each size."""

    limit: str
    volume: str
    total_bytes: int
    sizes: list[Figures] = field(default_factory=list)


def run(
    directory: Path,
    sizes: Sequence[int],
    total_bytes: int,
    rounds: int,
    tell: Callable[[str], None] = lambda _text: None,
) -> Report:
    """Measure; raise ConfigError for a directory that cannot be used."""
    limit: FioLimit | LoopLimit = FioLimit() if shutil.which("fio") else LoopLimit()
    try:
        place = Path(tempfile.mkdtemp(prefix="moonpool-bench-", dir=directory))
    except OSError as error:
        raise ConfigError(f"dir: {directory}: {error.strerror}; a directory is needed") from None
    try:
        report = Report(limit.name, "", total_bytes)
        for size in sizes:
            figures = Figures(size)
            report.sizes.append(figures)
            for number in range(rounds):
                tell(f"{size} bytes, round {number + 1} of {rounds}")
                limit.measure(place, figures, total_bytes)
                report.volume = _measure(place, figures, total_bytes)
        return report
    finally:
        shutil.rmtree(place, ignore_errors=True)


class FioLimit:
    """fio with libaio, as many calls under way as a shelf has."""

    name = f"fio, libaio, direct, iodepth {DEPTH} (writing), {READ_DEPTH} (reading)"

    def measure(self, place: Path, figures: Figures, total_bytes: int) -> None:
        """Add a round's figures."""
        path = place / "fio"
        figures.limit_write.append(self._run(path, "write", figures.size, total_bytes, DEPTH))
        figures.limit_read.append(self._run(path, "read", figures.size, total_bytes, READ_DEPTH))
        path.unlink(missing_ok=True)

    def _run(self, path: Path, what: str, size: int, total_bytes: int, depth: int) -> float:
        block = padded(size)
        total = total_bytes // block * block
        command = ["fio", "--name=limit", f"--filename={path}", f"--size={total}", f"--bs={block}"]
        command += [f"--rw={'randread' if what == 'read' else 'write'}", "--direct=1"]
        command += ["--ioengine=libaio", f"--iodepth={depth}", "--output-format=json"]
        command += ["--fallocate=posix", f"--end_fsync={int(what == 'write')}"]
        try:
            ended = subprocess.run(command, capture_output=True, timeout=FIO_S, check=True)
            found = json.loads(ended.stdout)["jobs"][0][what]
        except (OSError, subprocess.SubprocessError, ValueError, LookupError) as error:
            raise MoonpoolError(f"fio: {error}") from None
        return float(found["bw_bytes"])


class LoopLimit:
    """Plain threads that write and read a file past the page cache."""

    name = f"{DEPTH} threads with O_DIRECT pwrite and pread"

    def measure(self, place: Path, figures: Figures, total_bytes: int) -> None:
        """Add a round's figures."""
        block = padded(figures.size)
        offsets = list(range(0, total_bytes // block * block, block))
        memory = memoryview(mmap.mmap(-1, block))
        path = place / "loop"
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_DIRECT | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(fd, 0, len(offsets) * block)
            with ThreadPoolExecutor(DEPTH) as pool:

                def write(offset: int) -> None:
                    os.pwrite(fd, memory, offset)

                def read(offset: int) -> None:
                    os.preadv(fd, [memory], offset)

                began = time.perf_counter()
                list(pool.map(write, offsets))
                os.fdatasync(fd)
                figures.limit_write.append(_rate(len(offsets) * block, began))
                random.Random(1).shuffle(offsets)
                began = time.perf_counter()
                list(pool.map(read, offsets))
                figures.limit_read.append(_rate(len(offsets) * block, began))
        finally:
            os.close(fd)
            path.unlink(missing_ok=True)


def _measure(place: Path, figures: Figures, total_bytes: int) -> str:
    """Add a round of a shelf's figures; return how the disk is opened."""
    size, count = figures.size, total_bytes // padded(figures.size)
    memory = np.frombuffer(mmap.mmap(-1, count * padded(size)), np.uint8)
    memory[:] = np.random.default_rng(size).integers(0, 256, len(memory), np.uint8)
    items = _items(int(memory.ctypes.data), count, size)
    volume = LocalVolume(place, "bench")
    shelf = Shelf(volume, "bench", 4 * total_bytes, max(EXTENT_BYTES, padded(size)))
    try:
        began = time.perf_counter()
        step = max(1, BATCH_BYTES // padded(size))
        reasons = [r for at in range(0, count, step) for r in shelf.write(items[at : at + step])]
        figures.write.append(_rate(count * padded(size), began))
        memory[:] = 0
        random.Random(1).shuffle(items)
        began = time.perf_counter()
        step = max(1, READ_BYTES // padded(size))

        def read(at: int) -> list[str]:
            return shelf.read([_wanted(item) for item in items[at : at + step]])

        with ThreadPoolExecutor(READERS) as pool:
            for some in pool.map(read, range(0, count, step)):
                reasons += some
        figures.read.append(_rate(count * padded(size), began))
    finally:
        shelf.close()
        shutil.rmtree(place / "bench", ignore_errors=True)
    if set(reasons) != {STORED}:
        raise MoonpoolError(f"objects were not stored or read: {sorted(set(reasons))}")
    return "O_DIRECT" if volume.direct else "buffered: the filesystem refuses O_DIRECT"


def _items(base: int, count: int, size: int) -> list[Item]:
    items = []
    for i in range(count):
        address = base + i * padded(size)
        key = pack(i.to_bytes(16, "big"), b"bench" * 3)
        items.append(Item(key, b"", size, native.xxh3(address, size), i + 1, address))
    return items


def _wanted(item: Item) -> Wanted:
    return Wanted(item.key, item.generation, item.size, item.checksum, item.address)


def _rate(nbytes: int, began: float) -> float:
    return nbytes / (time.perf_counter() - began)
