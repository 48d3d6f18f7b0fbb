"""As much HTTP/1.1 as two ends of a measurement need, so that they cost little themselves."""

from __future__ import annotations

from enum import Enum

HEAD_BYTES_MAX = 64 << 10
HEAD_END = b"\r\n\r\n"


class WireError(ValueError):
    """Bytes that are not what either end would send."""


class _State(Enum):
    HEAD = 1
    BODY = 2
    SIZE = 3
    CHUNK = 4
    REST = 5
    DONE = 6


class Reader:
    """Reads one message, with Content-Length or in chunks; ``feed`` until ``done``.

    start: the first line. body: what has come of the body.
    """

    __slots__ = ("_held", "_left", "_state", "body", "headers", "start")

    def __init__(self) -> None:
        self.start = ""
        self.headers: dict[str, str] = {}
        self.body = bytearray()
        self._held = b""
        self._left = 0
        self._state = _State.HEAD

    @property
    def done(self) -> bool:
        """Whether the message is complete."""
        return self._state is _State.DONE

    def feed(self, data: bytes) -> None:
        """Take the next bytes. Raises WireError."""
        data = self._held + data if self._held else data
        self._held = b""
        while data and self._state is not _State.DONE:
            rest = self._step(data)
            if rest is None:
                self._held = data
                return
            data = rest
        self._held = data

    def _step(self, data: bytes) -> bytes | None:
        """Return what is left of the data, or None where more must come first."""
        if self._state is _State.HEAD:
            return self._head(data)
        if self._state in (_State.BODY, _State.CHUNK):
            taken = data[: self._left]
            self.body += taken
            self._left -= len(taken)
            if not self._left:
                self._state = _State.DONE if self._state is _State.BODY else _State.REST
            return data[len(taken) :]
        end = data.find(b"\r\n")
        if end < 0:
            return None
        if self._state is _State.SIZE:
            self._left = int(data[:end].split(b";")[0], 16)
            self._state = _State.CHUNK if self._left else _State.REST
            if not self._left:
                self._left = -1
        else:
            # The end of a chunk, or of the last one.
            self._state = _State.DONE if self._left < 0 else _State.SIZE
        return data[end + 2 :]

    def _head(self, data: bytes) -> bytes | None:
        end = data.find(HEAD_END)
        if end < 0:
            if len(data) > HEAD_BYTES_MAX:
                raise WireError("a head without an end")
            return None
        lines = data[:end].decode("latin-1").split("\r\n")
        self.start = lines[0]
        for line in lines[1:]:
            name, _, value = line.partition(":")
            self.headers[name.strip().lower()] = value.strip()
        if "chunked" in self.headers.get("transfer-encoding", ""):
            self._state = _State.SIZE
        else:
            self._left = int(self.headers.get("content-length", "0"))
            self._state = _State.BODY if self._left else _State.DONE
        return data[end + len(HEAD_END) :]


def chunk(data: bytes) -> bytes:
    """Return data as a chunk of a body."""
    return b"%x\r\n%b\r\n" % (len(data), data)


LAST_CHUNK = b"0\r\n\r\n"
