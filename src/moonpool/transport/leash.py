"""A child process that ends with the one that started it, whatever the child is stuck in.

The parent keeps the writing end of a pipe and never writes. When the last one that holds it is
gone, the kernel itself sends the child a signal that nothing can catch: a thread that waits for
the same would not run while an engine's code holds the interpreter.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal


def make() -> tuple[int, int]:
    """Return descriptors: one for the child, one that its parent keeps open."""
    return os.pipe()


def tie(fd: int) -> None:
    """Let this process be killed when nobody holds the other end any more."""
    fcntl.fcntl(fd, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(fd, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    if poll.poll(0):  # it went before that was set
        os.kill(os.getpid(), signal.SIGKILL)
