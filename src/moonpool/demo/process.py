"""Child processes that are started together, watched, and never left behind."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

from moonpool.demo import group
from moonpool.errors import MoonpoolError

POLL_S = 0.1
GRACE_S = 10.0
LOG_TAIL_LINES = 15


class StartError(MoonpoolError):
    """A process of the stack did not come up; the message holds the end of its log."""


class Child:
    """One process in a group of its own, with its output in a log file and ``env`` for variables.

    Being the leader of its own group, it does not get the terminal's Ctrl-C: the supervisor
    decides when and in which order its children end.
    """

    def __init__(
        self, name: str, command: Sequence[str], log: Path, env: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self.grace_s = GRACE_S
        """How long it may take to end."""
        self.log = log
        leash = [sys.executable, "-m", "moonpool.demo.leash", str(os.getpid())]
        self._command = [*leash, *command]
        self._env = dict(os.environ if env is None else env)
        self.start()

    def start(self) -> None:
        """Start the process, once more if it has ended and been killed.

        Call it in the main thread: the process ends with the thread that started it.
        """
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self._env,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """The process's id, which is also its group's."""
        return self._process.pid

    def is_alive(self) -> bool:
        """Return whether the process still runs."""
        return self._process.poll() is None

    def ended_badly(self) -> StartError:
        """Return an error that says how the process ended and shows the end of its log."""
        code = self._process.poll()
        return StartError(f"{self.name} ended with {code}; {self.log}:\n{self.log_tail()}")

    def log_tail(self) -> str:
        """Return the last lines of the log."""
        lines = self.log.read_text(errors="replace").splitlines()
        return "\n".join(lines[-LOG_TAIL_LINES:])

    async def stop(self, grace_s: float | None = None) -> None:
        """End the process and what it started: SIGTERM, a while to obey, then SIGKILL."""
        if self.is_alive():
            self._process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + (self.grace_s if grace_s is None else grace_s)
        orphans_told = False
        while time.monotonic() < deadline and (self.is_alive() or group.members(self.pid)):
            if not self.is_alive() and not orphans_told:
                group.send(self.pid, signal.SIGTERM)
                orphans_told = True
            await asyncio.sleep(POLL_S)
        self.kill()

    def kill(self) -> None:
        """End whatever is left of the group at once."""
        group.kill(self.pid)
        self._process.wait()
        group.reap(self.pid)


class Supervisor:
    """Starts children and ends them in the reverse order; use it as an async context."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._children: list[Child] = []

    async def __aenter__(self) -> Supervisor:
        group.adopt_orphans()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.stop(list(self._children))

    @property
    def children(self) -> list[Child]:
        """The children that were started and not stopped."""
        return list(self._children)

    def start(
        self, name: str, command: Sequence[str], env: Mapping[str, str] | None = None
    ) -> Child:
        """Start a process; its output goes to ``<logs>/<name>.log``."""
        child = Child(name, command, self._logs / f"{name}.log", env)
        self._children.append(child)
        return child

    async def stop(self, children: Sequence[Child]) -> None:
        """End these children, the youngest first; a cancelled wait kills what is left."""
        try:
            for child in reversed(children):
                await child.stop()
        finally:
            for child in children:
                child.kill()
                if child in self._children:
                    self._children.remove(child)

    async def stop_together(self, children: Sequence[Child]) -> None:
        """End these children at the same time, for those whose order does not matter."""
        try:
            await asyncio.gather(*(child.stop() for child in children))
        finally:
            await self.stop(children)

    def check(self) -> None:
        """Raise StartError when a child has ended by itself."""
        for child in self._children:
            if not child.is_alive():
                raise child.ended_badly()


async def until_ready(
    child: Child, ready: Callable[[], Awaitable[bool]], deadline_s: float
) -> None:
    """Wait until ``ready()`` says so; raise StartError if the child ends or the time is up."""
    deadline = time.monotonic() + deadline_s
    while not await ready():
        if not child.is_alive():
            raise child.ended_badly()
        if time.monotonic() > deadline:
            raise StartError(
                f"{child.name} was not ready after {deadline_s:.0f} s; "
                f"{child.log}:\n{child.log_tail()}"
            )
        await asyncio.sleep(POLL_S)
