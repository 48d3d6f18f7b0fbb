"""A trace of what passes through the router: lengths, times and keyed hashes, never text.

Mooncake's JSON lines, so that ``moonpool trace`` and ``moonpool bench e2e`` read it. Lines are in
the order of arrival: a finished request waits for those before it, but not for ever.
"""

from __future__ import annotations

import hashlib
import hmac
import io
import logging
import os
import queue
import secrets
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import msgspec

from moonpool.errors import ConfigError
from moonpool.router.prompt import Prompt
from moonpool.router.usage import Usage
from moonpool.trace_line import Line

ID_BITS = 62
KEY_BYTES_MIN = 16
QUEUED_MAX = 4096
WAITING_MAX = 8192
SESSIONS_MAX = 65_536
NAMES_KEPT = 1 << 18
FILES_MAX = 1000
CLOSE_S = 10.0
FLUSH_S = 1.0

log = logging.getLogger("moonpool.router.record")


@dataclass(slots=True)
class Passing:
    """One request that is being answered. block_tokens: 0 where its blocks are not known. good:
    whether it was answered. passed: it took so long that later ones are written already."""

    arrived_s: float
    session: str
    keys: Sequence[int] = ()
    block_tokens: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    delay_s: float | None = None
    ended: bool = False
    good: bool = False
    passed: bool = False


class Recorder:
    """Takes requests as they arrive and as they end; a thread of its own names blocks and writes.

    path: where it exists, a number is added. key: 16 bytes or more; the same one gives the same
    names. size: the file grows no further. Counts: ``written``, ``lost`` (the file is full, or the
    disk slower than the requests), ``unknown`` (written without their blocks).
    """

    def __init__(
        self,
        path: Path,
        key: bytes = b"",
        size: int = 1 << 30,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if key and len(key) < KEY_BYTES_MIN:
            raise ConfigError(f"key: {len(key)} bytes; allowed: {KEY_BYTES_MIN} or more")
        self.path, self._file = _created(path)
        self.written = self.lost = self.unknown = 0
        self._key, self._left = key or secrets.token_bytes(32), size
        self._clock = clock
        self._began = clock()
        self._open: deque[Passing] = deque()
        self._ended_s: OrderedDict[str, float] = OrderedDict()
        self._queue: queue.Queue[Passing | None] = queue.Queue(QUEUED_MAX)
        self._name = lru_cache(NAMES_KEPT)(self._named)
        self._encoder = msgspec.json.Encoder()
        self._thread = threading.Thread(target=self._write_all, name="record", daemon=True)
        self._thread.start()

    # --- on the event loop --------------------------------------------------------------------

    def arrived(self, session: str, ago_s: float = 0.0) -> Passing:
        """Take note of a request that came so long ago; every one is to be ended."""
        now = self._clock() - ago_s
        before = self._ended_s.get(session) if session else None
        entry = Passing(now, session, delay_s=None if before is None else max(0.0, now - before))
        self._open.append(entry)
        return entry

    def answered(self, entry: Passing, prompt: Prompt, usage: Usage | None, events: int) -> None:
        """Take what an engine counted; where it did not, what the router knows and has seen."""
        if usage is None and not prompt.exact:
            return
        entry.input_tokens = int(prompt.tokens) if usage is None else usage.prompt_tokens
        told = None if usage is None else usage.output_tokens
        entry.output_tokens = events if told is None else told
        if prompt.exact and prompt.tokens == entry.input_tokens:
            entry.block_tokens = int(prompt.block_tokens)
            entry.keys = prompt.keys[: entry.input_tokens // entry.block_tokens]
        entry.good = entry.input_tokens > 0

    def ended(self, entry: Passing) -> None:
        """Take note of a request's end; it is written if it was answered."""
        entry.ended = True
        if entry.session and entry.good:
            self._ended_s[entry.session] = self._clock()
            self._ended_s.move_to_end(entry.session)
            if len(self._ended_s) > SESSIONS_MAX:
                self._ended_s.popitem(last=False)
        if entry.passed:
            self._hand_over(entry)
        while self._open and (self._open[0].ended or len(self._open) > WAITING_MAX):
            first = self._open.popleft()
            first.passed = True
            if first.ended:
                self._hand_over(first)

    def _hand_over(self, entry: Passing) -> None:
        if not entry.good:
            return
        try:
            self._queue.put_nowait(entry)
        except queue.Full:
            self.lost += 1

    def close(self) -> None:
        """Write what has ended, and end. Idempotent."""
        if self._file.closed:
            return
        for entry in self._open:
            if entry.ended:
                self._hand_over(entry)
        self._open.clear()
        self._queue.put(None, timeout=CLOSE_S)
        self._thread.join(CLOSE_S)

    # --- in the thread ------------------------------------------------------------------------

    def _write_all(self) -> None:
        with self._file:
            while True:
                try:
                    entry = self._queue.get(timeout=FLUSH_S)
                except queue.Empty:
                    self._file.flush()
                    continue
                if entry is None:
                    return
                self._write(entry)

    def _write(self, entry: Passing) -> None:
        line = self._encoder.encode(self._line(entry)) + b"\n"
        if len(line) > self._left:
            if not self.lost:
                log.warning("%s is as large as it may be: nothing more is recorded", self.path)
            self._left = 0
            self.lost += 1
            return
        try:
            self._file.write(line)
        except OSError as error:
            log.error("%s: %s: nothing more is recorded", self.path, error)
            self._left = 0
            self.lost += 1
            return
        self._left -= len(line)
        self.written += 1
        self.unknown += not entry.block_tokens

    def _line(self, entry: Passing) -> Line:
        full = entry.input_tokens // entry.block_tokens if entry.block_tokens else 0
        ids = [self._name(key) for key in entry.keys[:full]]
        if entry.block_tokens and entry.input_tokens % entry.block_tokens:
            # The format names the last block too, which is not full: no other prompt has it.
            ids.append(self._fresh())
        return Line(
            max(0, round(1000 * (entry.arrived_s - self._began))),
            entry.input_tokens,
            entry.output_tokens,
            ids if entry.block_tokens else None,
            self._digest(f"session\0{entry.session}".encode()).hex()[:16] if entry.session else "",
            None if entry.delay_s is None else round(1000 * entry.delay_s, 3),
        )

    def _named(self, key: int) -> int:
        return int.from_bytes(self._digest(key.to_bytes(8, "big"))[:8]) >> (64 - ID_BITS)

    def _fresh(self) -> int:
        return int.from_bytes(secrets.token_bytes(8)) >> (64 - ID_BITS)

    def _digest(self, data: bytes) -> bytes:
        return hmac.digest(self._key, data, hashlib.sha256)


def _created(path: Path) -> tuple[Path, io.BufferedWriter]:
    """Return a new file that only its owner reads; raise ConfigError."""
    for number in range(FILES_MAX):
        each = path.with_stem(f"{path.stem}-{number}") if number else path
        try:
            fd = os.open(each, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            continue
        except OSError as error:
            raise ConfigError(f"record: {each}: {error.strerror or error}") from None
        return each, os.fdopen(fd, "wb")
    raise ConfigError(f"record: {path} and {FILES_MAX - 1} more exist; allowed: a new file")


def key_of(path: str) -> bytes:
    """Return the secret in a file, b"" where none is named; raise ConfigError."""
    if not path:
        return b""
    try:
        key = Path(path).read_bytes().strip()
    except OSError as error:
        raise ConfigError(f"record_key_file: {path}: {error.strerror or error}") from None
    if len(key) < KEY_BYTES_MIN:
        raise ConfigError(
            f"record_key_file: {path} has {len(key)} bytes; allowed: {KEY_BYTES_MIN} or more"
        )
    return key
