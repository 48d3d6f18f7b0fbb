"""Process groups: who is in one, and how to end all of it without leaks.

Python's multiprocessing runs a resource tracker beside its processes, which removes their shared
memory and semaphores once they are gone, however they went. Killed with the rest it could not.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36
TRACKER = b"multiprocessing.resource_tracker"
TRACKER_S = 3.0
REAP_S = 5.0
POLL_S = 0.02


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parents end, so that they can be waited for."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)


def members(group: int) -> list[int]:
    """Return the ids of the group's processes that still run."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        # A process may end at any time between these calls.
        with contextlib.suppress(OSError, IndexError):
            state, _, its_group, *_ = path.read_text().rsplit(")", 1)[1].split()
            if int(its_group) == group and state != "Z":
                found.append(int(path.parent.name))
    return found


def _is_tracker(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return TRACKER in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


def send(group: int, number: signal.Signals) -> None:
    """Send a signal to every process of the group but resource trackers."""
    for pid in members(group):
        if not _is_tracker(pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)


def kill(group: int) -> None:
    """End the group now: all but its trackers, then, when they have had a moment, those."""
    send(group, signal.SIGKILL)
    deadline = time.monotonic() + TRACKER_S
    while members(group) and time.monotonic() < deadline:
        time.sleep(POLL_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def reap(group: int) -> None:
    """Let none of the group's processes that are ours stay as a zombie."""
    deadline = time.monotonic() + REAP_S
    with contextlib.suppress(ChildProcessError):
        while time.monotonic() < deadline:
            if os.waitpid(-group, os.WNOHANG) == (0, 0):
                time.sleep(POLL_S)
