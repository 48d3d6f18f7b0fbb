"""The lines of a trace's file, and what is done about those that cannot be read."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from io import BufferedIOBase
from pathlib import Path

import msgspec

from moonpool.errors import ConfigError

BAD_LINE = (msgspec.MsgspecError, UnicodeDecodeError, ValueError, OverflowError)
LINE_BYTES_MAX = 256 << 20
SHOWN_MAX = 20

Lines = Iterator[tuple[int, bytes]]
"""Numbers of lines, from 1, and their bytes."""


class TraceError(ConfigError):
    """A trace that cannot be read; the message names file and line."""


@dataclass(slots=True)
class Problems:
    """What becomes of a bad line: with ``strict`` it ends the reading with a TraceError, else it
    is left out and counted. ``shown``: the first of them, as file, line and reason."""

    strict: bool = True
    count: int = 0
    shown: list[str] = field(default_factory=list)

    def note(self, path: Path, number: int, reason: object) -> None:
        """Take note of a bad line; raise TraceError where strict."""
        text = f"{path}:{number}: {reason}"
        if self.strict:
            raise TraceError(text) from None
        self.count += 1
        if len(self.shown) < SHOWN_MAX:
            self.shown.append(text)


def lines_of(path: Path) -> Lines:
    """Yield the lines of a file, gzipped or not, that are not blank; raise TraceError."""
    number = 0
    try:
        with _open(path) as file:
            while line := file.readline(LINE_BYTES_MAX):
                number += 1
                if line.strip():
                    yield number, line
    except (OSError, EOFError, zlib.error) as error:
        where = f"{path}:{number + 1}" if number else str(path)
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise TraceError(f"{where}: {reason}") from None


def _open(path: Path) -> BufferedIOBase:
    return gzip.open(path) if path.suffix == ".gz" else path.open("rb")
