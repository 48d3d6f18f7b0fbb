"""A carrier as the process that uses it sees it: started, asked, and ended if it must be."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping

from moonpool.errors import DeadlineError, MoonpoolError, TransferError
from moonpool.protocol.data import DataMessage
from moonpool.transport import leash
from moonpool.transport import onesided_engine as said
from moonpool.transport.base import U64
from moonpool.transport.onesided_engine import EngineError, Setup
from moonpool.transport.wire import Wire

_log = logging.getLogger(__name__)

PROCESS = "moonpool.transport.onesided_process"
START_S = 30.0
SEND_S = 10.0
END_S = 5.0


class Pending:
    """An order that was not answered yet."""

    def __init__(self) -> None:
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._then: list[Callable[[], None]] = []
        self.answer: said.Connected | said.Fetched | said.Failed | None = None

    def end(self, answer: said.Connected | said.Fetched | said.Failed) -> None:
        """Set the answer."""
        with self._lock:
            self.answer = answer
            self._ended.set()
            then, self._then = self._then, []
        for call in then:
            call()

    def then(self, call: Callable[[], None]) -> None:
        """Call this when the answer is there, in any thread; at once if it is."""
        with self._lock:
            if not self._ended.is_set():
                self._then.append(call)
                return
        call()

    def wait(self, seconds: float) -> bool:
        """Tell whether the answer came in that time."""
        return self._ended.wait(seconds)

    def result(self) -> said.Connected | said.Fetched:
        """Return the answer; raise TransferError if it is a failure or is not there."""
        if self.answer is None:
            raise DeadlineError("the carrier took too long")
        if isinstance(self.answer, said.Failed):
            raise TransferError(self.answer.text)
        return self.answer


class Carrier:
    """A started carrier. May be used from several threads. ``on_end`` is called once, in any
    thread, when it has ended; nothing moves any more then, whatever it was doing. It is not called
    for one that did not start."""

    def __init__(
        self,
        setup: Setup,
        environment: Mapping[str, str] | None = None,
        *,
        on_end: Callable[[], None] = lambda: None,
        start_s: float = START_S,
        module: str = PROCESS,
    ) -> None:
        """Start it. Raises EngineError if the engine does not start within that time."""
        self.kind = setup.kind
        self._on_end: Callable[[], None] = lambda: None
        self._lock = threading.Lock()
        self._sending = threading.Lock()
        self._pending: dict[int, Pending] = {}
        self._number = 0
        self.ended = threading.Event()
        self.notes = 0
        near, far = socket.socketpair()
        leashed, self._leash = leash.make()
        fds = [region.fd for region in setup.regions if region.fd >= 0]
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, str(far.fileno()), str(leashed)],
                pass_fds=[far.fileno(), leashed, *fds],
                stdin=subprocess.DEVNULL,
                # What fails is reported by us; these libraries print much that is no failure.
                stderr=None if _log.isEnabledFor(logging.DEBUG) else subprocess.DEVNULL,
                env={**os.environ, **(environment or {})},
            )
        except OSError as error:
            near.close()
            os.close(self._leash)
            raise EngineError(f"no carrier process: {error}") from None
        finally:
            far.close()
            os.close(leashed)
        self._wire = Wire(near)
        try:
            self._wire.within(start_s)
            self._wire.send(setup)
            first = said.decode_report(self._wire.receive())
            if not isinstance(first, said.Ready):
                why = first.text if isinstance(first, said.Failed) else "not ready"
                raise EngineError(why)
        except MoonpoolError as error:
            self._end()
            raise EngineError(str(error)) from None
        self._on_end = on_end
        self.description, self.bases = first.description, first.bases
        self.backends = tuple(first.backends)
        self._reader = threading.Thread(target=self._read, name="moonpool-carrier", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """Return the process's number."""
        return self._process.pid

    def connect(self, description: bytes, timeout_s: float) -> str:
        """Make a peer reachable; return its name. Raises TransferError, DeadlineError."""
        pending = self._order(lambda number: said.Connect(number, description))
        pending.wait(timeout_s)
        answer = pending.result()
        if not isinstance(answer, said.Connected):
            raise TransferError("the carrier answered another question")
        return answer.peer

    def disconnect(self, peer: str) -> None:
        """Forget a peer; does not wait."""
        with contextlib.suppress(MoonpoolError):
            self._send(said.Disconnect(peer))

    def fetch(
        self,
        peer: str,
        region: int,
        rows: tuple[U64, U64, U64],
        phases: list[int],
        *,
        note: bool = False,
        gpu: bool = False,
        device: int = 0,
    ) -> Pending:
        """Begin to copy (targets, sources, lengths) from a peer into a region; see Fetch."""
        targets, sources, lengths = (each.tobytes() for each in rows)
        return self._order(
            lambda number: said.Fetch(
                number, peer, region, targets, sources, lengths, phases, note, gpu, device
            )
        )

    def kill(self) -> None:
        """End the process and wait for that: afterwards nothing is written by it."""
        with contextlib.suppress(OSError):
            self._process.kill()
        self._end()

    def _order(self, make: Callable[[int], DataMessage]) -> Pending:
        pending = Pending()
        with self._lock:
            if self.ended.is_set():
                raise TransferError("the carrier has ended")
            self._number += 1
            number = self._number
            self._pending[number] = pending
        try:
            self._send(make(number))
        except MoonpoolError:
            self.kill()
            raise
        return pending

    def _send(self, message: DataMessage) -> None:
        with self._sending:
            self._wire.within(SEND_S)
            self._wire.send(message)

    def _read(self) -> None:
        try:
            while True:
                self._wire.wait_for_end()
                self._wire.within(SEND_S)
                report = said.decode_report(self._wire.receive())
                if isinstance(report, said.Noted):
                    self.notes = report.count
                elif isinstance(report, said.Connected | said.Fetched | said.Failed):
                    with self._lock:
                        pending = self._pending.pop(report.id, None)
                    if pending is not None:
                        pending.end(report)
        except (MoonpoolError, OSError):
            pass
        finally:
            self.kill()

    def _end(self) -> None:
        """Reap the process; only then are its orders answered."""
        self._wire.interrupt()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        with self._lock:
            if self.ended.is_set():
                return
            self.ended.set()
            pending, self._pending = list(self._pending.values()), {}
        self._wire.close()
        os.close(self._leash)
        for each in pending:
            each.end(said.Failed(0, "the carrier has ended"))
        self._on_end()
