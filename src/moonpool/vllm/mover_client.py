"""The engine's end of the mover: sends jobs, takes results, never waits for either.

If the mover ends by itself, all its jobs end as failed once the kernel has taken the process
away: only then nothing writes to the engine's memory any more. It is started again a few times.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path

import moonpool
from moonpool.errors import MasterUnreachableError, ProtocolError
from moonpool.gpu import GpuError
from moonpool.protocol.framing import FrameDecoder
from moonpool.vllm import mover_wire as wire
from moonpool.vllm.arrivals import LIMIT_S
from moonpool.vllm.jobs import LoadDone, LoadJob, SaveDone, SaveJob
from moonpool.vllm.link import Clock
from moonpool.vllm.log import logger
from moonpool.vllm.stats import Tally

COMMAND = (sys.executable, "-m", "moonpool.vllm.mover")
START_S = 30.0
CLOSE_S = 5.0
OVERDUE_S = 30.0
"""How far past its deadline a job may be before the mover is taken for stuck."""
RESTS_S = (1.0, 5.0, 30.0)
"""Rests before each start after a failure; when they are used up, it stays off."""
STEADY_S = 600.0
"""A mover that ran so long has made up for earlier failures."""
SOCKET_BYTES = 4 << 20
OUTBOX_BYTES_MAX = 64 << 20
RECEIVE_BYTES = 1 << 18

_OFF, _STARTING, _RUNNING, _ENDING, _RESTING = "off", "starting", "running", "ending", "resting"


class Mover:
    """Runs transfers in a process of its own; see ``executor.Runner``."""

    def __init__(
        self,
        setup: wire.Setup,
        tally: Tally,
        *,
        command: Sequence[str] = COMMAND,
        clock: Clock = time.monotonic,
    ) -> None:
        """Nothing is started yet."""
        self._setup, self._tally, self._command, self._clock = setup, tally, command, clock
        self._state = _OFF
        self._failures, self._began = 0, False
        self._until = self._spawned = 0.0
        self._refusal = self._why = ""
        self._process: subprocess.Popen[bytes] | None = None
        self._sock: socket.socket | None = None
        self._frames = FrameDecoder()
        self._outbox: deque[memoryview] = deque()
        self._outbox_bytes = 0
        self._loads: dict[int, tuple[LoadJob, float]] = {}
        self._saves: dict[int, tuple[SaveJob, float]] = {}
        self._ended: tuple[list[LoadDone], list[SaveDone]] = ([], [])

    # --- what the engine calls -----------------------------------------------------------------

    def start(self, timeout_s: float = START_S) -> None:
        """Start the process and wait until it has opened the engine's memory.

        Raises GpuError if it cannot, or not in time.
        """
        self._spawn()
        deadline = self._clock() + timeout_s
        while self._state == _STARTING and self._clock() < deadline and self._sock is not None:
            select.select([self._sock], [], [], 0.1)
            self._receive()
        if self._state != _RUNNING:
            error = self._why or f"it was not ready within {timeout_s:.0f} s"
            self.close()
            raise GpuError(f"the mover: {error}")
        self._began = True

    @property
    def ready(self) -> bool:
        """Whether jobs have a chance now."""
        return self._state == _RUNNING

    @property
    def pid(self) -> int:
        """The process's number; 0 while there is none."""
        return self._process.pid if self._process is not None else 0

    def load(self, jobs: Sequence[LoadJob], mark: int | None) -> None:
        """Begin loads; without a mover they fail at once."""
        until = self._clock() + self._setup.settings.load_timeout_s + OVERDUE_S
        for job in jobs:
            waits_s = LIMIT_S if job.patience_s else 0.0
            self._loads[job.generation] = (job, until + waits_s)
        if self._state == _RUNNING:
            begin = wire.Begin(loads=[wire.load_of(job) for job in jobs], mark=_mark(mark))
            self._send(begin)
        elif self._state != _ENDING:
            self._fail_all()

    def save(self, jobs: Sequence[SaveJob], mark: int | None) -> None:
        """Begin saves; without a mover they fail at once."""
        until = self._clock() + self._setup.settings.save_timeout_s + OVERDUE_S
        for job in jobs:
            self._saves[job.job_id] = (job, until)
        if self._state == _RUNNING:
            begin = wire.Begin(saves=[wire.save_of(job) for job in jobs], mark=_mark(mark))
            self._send(begin)
        elif self._state != _ENDING:
            self._fail_all()

    def cancel(self, generations: Sequence[int]) -> None:
        """Let loads end early."""
        if self._state == _RUNNING:
            self._send(wire.Begin(cancels=list(generations)))

    def take(self) -> tuple[list[LoadDone], list[SaveDone]]:
        """Return what ended since the last call."""
        if self._state in (_STARTING, _RUNNING):
            self._flush()
            self._receive()
            self._watch()
        if self._state == _ENDING:
            self._await_end()
        if self._state == _RESTING and self._clock() >= self._until:
            self._spawn()
        ended, self._ended = self._ended, ([], [])
        return ended

    def close(self) -> None:
        """End the process; nothing touches the engine's memory afterwards. Idempotent."""
        self._state = _OFF
        self._close_socket()
        process, self._process = self._process, None
        if process is None:
            return
        try:
            process.wait(CLOSE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    # --- the process ---------------------------------------------------------------------------

    def _spawn(self) -> None:
        ours, theirs = socket.socketpair()
        for end in (ours, theirs):
            for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
                end.setsockopt(socket.SOL_SOCKET, option, SOCKET_BYTES)
        with theirs:
            self._process = subprocess.Popen(
                [*self._command, str(theirs.fileno()), str(os.getpid())],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                env=_environment(),
            )
        ours.setblocking(False)
        self._sock, self._frames, self._refusal = ours, FrameDecoder(), ""
        self._outbox.clear()
        self._outbox_bytes = 0
        self._state = _STARTING
        self._spawned = self._clock()
        self._until = self._spawned + START_S
        self._send(self._setup)

    def _watch(self) -> None:
        """End a mover that does not answer: its jobs would never end."""
        now = self._clock()
        late = self._state == _STARTING and now > self._until
        for jobs in (self._loads, self._saves):
            late = late or any(now > until for _, until in jobs.values())
        if late:
            self._lost("it does not answer")

    def _lost(self, why: str) -> None:
        """Take note that the mover is gone or must go."""
        self._why = why
        if not self._began:
            self.close()
            return
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGKILL)
        self._close_socket()
        self._state = _ENDING
        self._await_end()

    def _await_end(self) -> None:
        """Once the process is away, end its jobs; the kernel frees its mappings before that."""
        if self._process is not None and self._process.poll() is None:
            return
        code = self._process.returncode if self._process is not None else 0
        self._process = None
        self._tally.count("mover_failures")
        self._fail_all()
        if self._clock() - self._spawned > STEADY_S:
            self._failures = 0
        if self._failures >= len(RESTS_S):
            self._state = _OFF
            logger.error(
                "moonpool: the mover ended again (%s, exit %s); serving without the pool from now "
                "on. Restart the engine to use it again",
                self._why,
                code,
            )
            return
        rest_s = RESTS_S[self._failures]
        self._failures += 1
        self._state, self._until = _RESTING, self._clock() + rest_s
        logger.warning(
            "moonpool: the mover ended (%s, exit %s): its loads are recomputed, its saves dropped; "
            "starting it again in %.0f s",
            self._why,
            code,
            rest_s,
        )

    def _fail_all(self) -> None:
        """End all jobs as failed. Nothing moves bytes for them any more, or ever did."""
        loads, saves = self._ended
        for job, _ in self._loads.values():
            loads.append(LoadDone(job.request_id, job.generation, job.first_block))
        for save, _ in self._saves.values():
            codes = (MasterUnreachableError.code,) * len(save.counts)
            saves.append(SaveDone(save.job_id, codes))
        self._loads.clear()
        self._saves.clear()

    # --- the socket ----------------------------------------------------------------------------

    def _send(self, message: wire.Message) -> None:
        data = wire.encode(message)
        self._outbox.append(memoryview(data))
        self._outbox_bytes += len(data)
        if self._outbox_bytes > OUTBOX_BYTES_MAX:
            self._lost("it takes no more jobs")
            return
        self._flush()

    def _flush(self) -> None:
        try:
            while self._outbox and self._sock is not None:
                sent = self._sock.send(self._outbox[0])
                self._outbox_bytes -= sent
                rest = self._outbox.popleft()[sent:]
                if rest:
                    self._outbox.appendleft(rest)
        except BlockingIOError:
            return
        except OSError as error:
            self._lost(str(error))

    def _receive(self) -> None:
        """Take in what has arrived."""
        while self._sock is not None:
            try:
                data = self._sock.recv(RECEIVE_BYTES)
                if not data:
                    self._lost(self._refusal or "it closed its socket")
                    return
                for payload in self._frames.feed(data):
                    self._handle(wire.decode(payload))
            except BlockingIOError:
                return
            except (OSError, ProtocolError) as error:
                self._lost(str(error))
                return
            if len(data) < RECEIVE_BYTES:
                return

    def _handle(self, message: wire.Message) -> None:
        if isinstance(message, wire.Ready) and self._state == _STARTING:
            self._refusal = message.error
            if not message.error:
                self._state = _RUNNING
        elif isinstance(message, wire.Ended):
            loads, saves = self._ended
            # Each job ends once, whatever the other side says.
            loads += [done for done in message.loads if self._loads.pop(done.generation, None)]
            saves += [done for done in message.saves if self._saves.pop(done.job_id, None)]
            self._tally.add(message.counts)

    def _close_socket(self) -> None:
        if self._sock is not None:
            self._sock.close()
        self._sock = None


def _mark(mark: int | None) -> int:
    return wire.NO_MARK if mark is None else mark


def _environment() -> dict[str, str]:
    """Return the environment in which the process finds the same moonpool."""
    root = str(Path(moonpool.__file__).resolve().parents[1])
    paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
