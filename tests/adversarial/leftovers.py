"""What a process must give back: threads, descriptors, mappings, memory."""

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from tests.adversarial.harness import eventually


def descriptors(pid: int | str = "self") -> list[str]:
    """Return what the open descriptors of a process are, sorted."""
    found = []
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            found.append(str(path.readlink()).split(":[")[0])
    return sorted(found)


def mappings(part: str, pid: int | str = "self") -> list[str]:
    """Return the lines of a process's memory map that name files with ``part`` in their path."""
    return [line for line in Path(f"/proc/{pid}/maps").read_text().splitlines() if part in line]


def cpu_s(pid: int | str = "self") -> float:
    """Return the seconds of processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def peak_bytes(pid: int) -> int:
    """Return the largest resident memory of a process so far, shared memory included."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmHWM")


@contextlib.contextmanager
def nothing_left(within_s: float = 5.0) -> Iterator[None]:
    """Fail if the block leaves a thread or a descriptor behind in this process."""
    threads, files = set(threading.enumerate()), len(descriptors())
    yield

    def left() -> list[threading.Thread]:
        return [t for t in threading.enumerate() if t not in threads and t.is_alive()]

    with contextlib.suppress(AssertionError):
        eventually(lambda: not left() and len(descriptors()) <= files, within_s, "given back")
    assert not left(), left()
    assert len(descriptors()) <= files, descriptors()


@contextlib.contextmanager
def within(seconds: float) -> Iterator[None]:
    """Fail if the block takes longer than a deadline that has much air already."""
    start = time.monotonic()
    yield
    taken = time.monotonic() - start
    assert taken < seconds, f"{taken:.1f} s where at most {seconds} s are allowed"
