"""What two engines say to each other: frames of MessagePack, with raw payload behind some.

A connection starts with Open, answered by Opened; then one request at a time, each answered by
Done. Behind Write come the payloads of its ranges, in order; behind the Done of a Read as well.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
import numpy as np

from moonpool.errors import ProtocolError
from moonpool.protocol.data import DataMessage
from moonpool.transport.base import U64

VERSION: Final = 1
RANGES_MAX: Final = 16_384
FRAME_MAX: Final = 1 << 20
NOTE_CHARS_MAX: Final = 65_536


class Open(DataMessage, frozen=True):
    """First message; ``token`` is the pool's, where one is set."""

    version: int
    token: str = ""


class Opened(DataMessage, frozen=True):
    """The answer; a code below 0 ends the connection."""

    version: int
    code: int = 0


class Write(DataMessage, frozen=True):
    """Take these bytes; addresses and lengths are arrays of little-endian u64."""

    addresses: bytes
    lengths: bytes


class Read(DataMessage, frozen=True):
    """Give the bytes of these ranges."""

    addresses: bytes
    lengths: bytes


class Note(DataMessage, frozen=True):
    """Something to tell the program."""

    name: str
    text: str


class Ask(DataMessage, frozen=True):
    """Tell that you are there, and where your first buffer is."""


class Done(DataMessage, frozen=True):
    """The answer; ``value`` is that of Ask."""

    code: int
    value: int = 0


Request = Open | Write | Read | Note | Ask
_requests = msgspec.msgpack.Decoder(Request)
_answers = msgspec.msgpack.Decoder(Opened | Done)


def request_of(payload: bytes | bytearray) -> Request:
    """Return a request; raise ProtocolError."""
    return _decoded(_requests, payload)  # type: ignore[no-any-return]


def answer_of(payload: bytes | bytearray) -> Opened | Done:
    """Return an answer; raise ProtocolError."""
    return _decoded(_answers, payload)  # type: ignore[no-any-return]


def _decoded(decoder: Any, payload: bytes | bytearray) -> Any:
    try:
        return decoder.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ProtocolError(f"not understood: {error}") from None


def packed(numbers: U64) -> bytes:
    """Return an array as it travels."""
    return numbers.astype("<u8").tobytes()


def ranges_of(request: Write | Read) -> tuple[U64, U64]:
    """Return addresses and lengths; raise ProtocolError for what are no ranges."""
    if len(request.addresses) != len(request.lengths) or len(request.addresses) % 8:
        raise ProtocolError("addresses and lengths do not fit together")
    if len(request.addresses) > 8 * RANGES_MAX:
        raise ProtocolError(f"more than {RANGES_MAX} ranges")
    numbers = [
        np.frombuffer(each, "<u8").astype(np.uint64)
        for each in (request.addresses, request.lengths)
    ]
    return numbers[0], numbers[1]
