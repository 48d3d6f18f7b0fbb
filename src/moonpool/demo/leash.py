"""``python -m moonpool.demo.leash PARENT COMMAND...``: become COMMAND, and end when PARENT ends.

The kernel sends SIGTERM to the command when the process that started it dies, however it dies, so
that not even ``kill -9`` of the supervisor leaves engines or shared memory behind.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Tie this process to its parent and run the command in its place."""
    parent, command = int(sys.argv[1]), sys.argv[2:]
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        sys.exit("the parent is gone already")
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
