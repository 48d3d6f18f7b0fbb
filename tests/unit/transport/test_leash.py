"""A child on a leash ends with its parent, even where none of its threads can run."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from moonpool.transport import leash

CHILD = """
import ctypes, sys
from moonpool.transport import leash
leash.tie(int(sys.argv[1]))
print("tied", flush=True)
ctypes.PyDLL(None).sleep(600)  # holds the interpreter, as a library that hangs does
"""


def child(fd: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, str(fd)], pass_fds=[fd], stdout=subprocess.PIPE
    )


def test_a_child_that_hangs_ends_with_the_last_holder() -> None:
    theirs, ours = leash.make()
    with child(theirs) as process:
        os.close(theirs)
        assert process.stdout is not None
        assert process.stdout.readline() == b"tied\n"
        second = os.dup(ours)
        os.close(ours)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.2)  # somebody still holds it
        os.close(second)
        assert process.wait(60) == -9


def test_a_parent_that_is_gone_already() -> None:
    theirs, ours = leash.make()
    os.close(ours)
    with child(theirs) as process:
        os.close(theirs)
        assert process.wait(60) == -9
