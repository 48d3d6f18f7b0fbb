"""Client processes, seen from the benchmark that drives them: nothing waits without a deadline."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from moonpool.bench.worker import Answer
from moonpool.errors import MoonpoolError

ANSWER_S = 90.0
"""Mooncake reports a failed batch after 60 s."""
LEAVE_S = 4.0
LOG_CHARS = 300


class PeerError(MoonpoolError):
    """A client process failed, fell silent, or said that a call failed."""


class Peer:
    """A client process."""

    def __init__(self, name: str, command: Sequence[str], env: dict[str, str], log: Path) -> None:
        self.name = name
        self.log = log
        self._lines = b""
        with log.open("wb") as file:
            self._child = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file, env=env
            )

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._child.pid

    def call(self, do: str, *, within_s: float = ANSWER_S, **arguments: Any) -> Answer:
        """Give a command and wait for its answer. Raises PeerError."""
        self.send(do, **arguments)
        return self.receive(within_s)

    def send(self, do: str, **arguments: Any) -> None:
        """Give a command. Raises PeerError."""
        pipe = _pipe(self._child.stdin)
        try:
            pipe.write(json.dumps({"do": do, **arguments}).encode() + b"\n")
            pipe.flush()
        except (OSError, ValueError):
            raise PeerError(self._ending()) from None

    def receive(self, within_s: float = ANSWER_S) -> Answer:
        """Wait for the answer; a process that gives none is ended. Raises PeerError."""
        answer: Answer = json.loads(self._line(time.monotonic() + within_s, within_s))
        if "error" in answer:
            raise PeerError(f"{self.name}: {answer['error']}")
        if answer.get("failed"):
            counts = ", ".join(f"{n} x {code}" for code, n in answer["failed"].items())
            raise PeerError(f"{self.name}: objects failed with codes {counts}")
        if answer.get("wrong"):
            raise PeerError(f"{self.name}: {answer['wrong']} wrong answers")
        return answer

    def _line(self, deadline: float, within_s: float) -> bytes:
        fd = _pipe(self._child.stdout).fileno()
        with selectors.DefaultSelector() as selector:
            selector.register(fd, selectors.EVENT_READ)
            while b"\n" not in self._lines:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    self.kill()
                    raise PeerError(f"{self.name}: no answer within {within_s:.0f} s")
                read = os.read(fd, 1 << 16)
                if not read:
                    raise PeerError(self._ending())
                self._lines += read
        line, _, self._lines = self._lines.partition(b"\n")
        return line

    def _ending(self) -> str:
        try:
            code = self._child.wait(LEAVE_S)
        except subprocess.TimeoutExpired:
            code = None
        said = self.log.read_text(errors="replace").strip().splitlines()
        last = said[-1][-LOG_CHARS:] if said else "it said nothing"
        return f"{self.name}: the process ended (exit code {code}): {last}"

    def kill(self) -> None:
        """End the process at once."""
        self._child.kill()
        self._child.wait()

    def leave(self) -> None:
        """Ask the process to end; do not wait."""
        with contextlib.suppress(OSError):
            _pipe(self._child.stdin).close()

    def close(self) -> None:
        """Let the process leave, or end it."""
        self.leave()
        try:
            self._child.wait(LEAVE_S)
        except subprocess.TimeoutExpired:
            self.kill()
        _pipe(self._child.stdout).close()


def call_all(
    peers: Sequence[Peer], do: str, *, within_s: float = ANSWER_S, **arguments: Any
) -> list[Answer]:
    """Give all processes a command at once; return their answers. Raises PeerError."""
    for peer in peers:
        peer.send(do, **arguments)
    return [peer.receive(within_s) for peer in peers]


def leave(peers: Sequence[Peer]) -> None:
    """Ask all processes to end: they do so at the same time."""
    for peer in peers:
        peer.leave()


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    if pipe is None:
        raise PeerError("the process has no pipe")
    return pipe
