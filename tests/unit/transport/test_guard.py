"""A segment's file that is cut short, or a full file system: an error, and the process lives.

In processes of their own: without the guard the signal would end them.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

HEAD = """
import os, sys
import numpy as np
from moonpool.errors import TransferError
from moonpool.transport import copy, layout
from moonpool.transport.base import Pieces, Places
from moonpool.transport.layout import Geometry
from moonpool.transport.segment import Segment
from moonpool.transport.shm import ShmTransport

MIB = 1 << 20
path, compiled = sys.argv[1], sys.argv[2] == "numba"
if compiled and copy.prepare() != "numba":
    sys.exit(77)
copy.STREAM_BYTES = 0
segment = Segment.create(path, layout.new_header("node", "name", Geometry.holding(64 * MIB)))
way = ShmTransport(Segment.open(path))

def places(size, count):
    numbers = np.arange(count, dtype=np.uint64)
    room = np.full(count, size, np.uint64)
    return Places(numbers.astype(np.int64), numbers * np.uint64(size), room, room,
                  numbers + np.uint64(1), np.zeros(count, np.uint64))

def pieces(array, size, count):
    at = np.uint64(array.ctypes.data) + np.arange(count, dtype=np.uint64) * np.uint64(size)
    return Pieces(at, np.full(count, size, np.uint64), np.arange(count + 1))

def write(size, count, source):
    keys = [b"k%d" % i for i in range(count)]
    return way.write(places(size, count), pieces(source, size, count), keys, []).codes.tolist()

def read(size, count, target):
    return way.read(places(size, count), pieces(target, size, count)).tolist()

source = np.full(48 * MIB, 7, np.uint8)
target = np.zeros(48 * MIB, np.uint8)
"""

TRUNCATED_READ = """
size, count = SIZE, COUNT
assert write(size, count, source) == [0] * count
os.truncate(path, os.path.getsize(path) - 60 * MIB)
assert read(size, count, target) == [-800] * count
assert way.segment.lost
assert read(size, count, target) == [-800] * count
assert write(size, count, source) == [-800] * count
"""
TRUNCATED_WRITE = """
size, count = SIZE, COUNT
os.truncate(path, os.path.getsize(path) - 60 * MIB)
assert write(size, count, source) == [-800] * count
assert way.segment.lost
"""
TRUNCATED_TABLE = """
os.truncate(path, 0)
assert all(code in (-704, -800) for code in read(4096, 2, target))
assert read(4096, 2, target) == [-800] * 2
for _ in range(2):
    try:
        segment.drop([0], [1])
    except TransferError:
        pass
    else:
        raise SystemExit(1)
assert segment.lost
"""
TRUNCATED_HASH = """
size, count = 3 * MIB, 8
assert write(size, count, source) == [0] * count
os.truncate(path, os.path.getsize(path) - 60 * MIB)
copy.digest(copy.whole(places(size, count).offsets + np.uint64(segment.address),
                       places(size, count).sizes))
assert segment.lost and not way.segment.lost
"""
FULL = """
codes = write(3 * MIB, 16, source)
assert codes == [-800] * 16, codes
assert way.segment.lost
way = ShmTransport(Segment.open(path))
at = places(MIB, 1)
assert way.read(at, pieces(target, MIB, 1)).tolist() == [0]
assert (target[:MIB] == 7).all()
"""
ELSEWHERE = """
import mmap
from moonpool.transport import guard
with open(path + ".other", "w+b") as file:
    file.truncate(2 * mmap.PAGESIZE)
    other = mmap.mmap(file.fileno(), 2 * mmap.PAGESIZE)
    file.truncate(0)
print("before", flush=True)
other[0]
"""
TAIL = """
way.close()
segment.close()
print("fine")
"""


@pytest.fixture(params=["ctypes", "numba"])
def way(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def run(script: str, path: Path, way: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONFAULTHANDLER": "", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", HEAD + script + TAIL, str(path), way],
        capture_output=True,
        text=True,
        timeout=120,
        env=environment,
    )
    if done.returncode == 77:
        pytest.skip("numba cannot be had")
    return done


@pytest.mark.parametrize("size_count", ["3 * MIB, 8", "4096, 2"])
@pytest.mark.parametrize("script", [TRUNCATED_READ, TRUNCATED_WRITE])
def test_a_file_that_is_cut_short(script: str, size_count: str, tmp_path: Path, way: str) -> None:
    if size_count.startswith("4096"):
        script = script.replace("60 * MIB", "64 * MIB")
    done = run(script.replace("SIZE, COUNT", size_count), tmp_path / "a.seg", way)
    assert (done.returncode, done.stdout) == (0, "fine\n"), done.stderr


@pytest.mark.parametrize("script", [TRUNCATED_TABLE, TRUNCATED_HASH])
def test_what_the_node_does_with_such_a_file(script: str, tmp_path: Path, way: str) -> None:
    done = run(script, tmp_path / "a.seg", way)
    assert (done.returncode, done.stdout) == (0, "fine\n"), done.stderr


@pytest.fixture
def small_system(tmp_path: Path) -> Iterator[Path]:
    """A file system in memory with room for a part of the segment."""
    place = tmp_path / "full"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=16m", "none", str(place)]
    if os.geteuid() or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("a file system cannot be mounted")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_shared_memory_is_full(small_system: Path, way: str) -> None:
    done = run(FULL, small_system / "a.seg", way)
    assert (done.returncode, done.stdout) == (0, "fine\n"), done.stderr


def test_faults_elsewhere_end_the_process_as_before(tmp_path: Path) -> None:
    done = run(ELSEWHERE, tmp_path / "a.seg", "ctypes")
    assert (done.returncode, done.stdout) == (-signal.SIGBUS, "before\n"), done.stderr
