"""What goes over a connection to a node's data port: control messages between raw payload.

A control message is a frame (framing.py) of MessagePack. A connection starts with OpenData; then
one request at a time. Arrays travel as the bytes of little-endian u64 (i64) arrays of n items.

- ReadBatch: answered by ReadHead (a code per object), the payloads of the objects with code 0 in
  order, and ReadTail: the codes again, now also telling which objects were overwritten meanwhile.
- WriteBatch, followed at once by all payloads in order and WriteTail with the checksums; answered
  by WriteDone.
- OpenOneSided: answered by OneSidedReady; where that has no ``why``, the connection stays open for
  as long as client and node read each other's memory.
- PullBatch: the node fetches the payloads from the client's memory; answered by WriteDone.
- Attach: answered by Attached; marks the connection as one that its client keeps open for as long
  as it maps the node's segments.

Refused may take the place of any answer; the node then closes the connection.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from moonpool.core.messages import BATCH_ITEMS_MAX
from moonpool.errors import ProtocolError
from moonpool.protocol.framing import FRAME_BYTES_MAX, HEADER_BYTES, frame

OPEN_BYTES_MAX = 4096
"""The longest frame before a client has said who it is."""
CLIENT_CHARS_MAX = 128
WORD_BYTES = 8
DISK = "disk"
"""As the segment of a ReadBatch: objects on the node's disk. Offsets do not count there."""


class DataMessage(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Base of all messages; on the wire ``[class name, field, field, ...]``."""


class OpenData(DataMessage, frozen=True):
    """First message. ``client`` is the name of the client's session with the master, ``token`` the
    pool's."""

    version_min: int
    version_max: int
    client: str
    token: str = ""


class DataReady(DataMessage, frozen=True):
    """The node's answer: the version to speak and its name."""

    version: int
    node: str


class Attach(DataMessage, frozen=True):
    """Ask for the segments to map. The connection carries nothing else from here on."""


class AttachedSegment(msgspec.Struct, frozen=True, array_like=True):
    """A segment file; ``epoch`` is in its header, and ``users`` the file whose shared lock tells
    that somebody maps it."""

    name: str
    path: str
    epoch: int
    users: str = ""


class Attached(DataMessage, frozen=True):
    """Where the node's segments are; ``host`` says whose memory that is."""

    host: str
    segments: list[AttachedSegment]


class ReadBatch(DataMessage, frozen=True):
    """Ask for objects: where they are and which generation is wanted."""

    segment: str
    offsets: bytes
    sizes: bytes
    generations: bytes


class ReadHead(DataMessage, frozen=True):
    """A code per object; the payloads of those with code 0 follow."""

    codes: bytes


class ReadTail(DataMessage, frozen=True):
    """A code per object after its bytes were sent."""

    codes: bytes


class WriteBatch(DataMessage, frozen=True):
    """Store objects in granted slots; all their payloads and WriteTail follow."""

    segment: str
    indexes: bytes
    offsets: bytes
    sizes: bytes
    capacities: bytes
    generations: bytes
    keys: list[bytes]
    parents: list[bytes]


class WriteTail(DataMessage, frozen=True):
    """The xxh3_64 of each payload as the client sent it."""

    checksums: bytes


class WriteDone(DataMessage, frozen=True):
    """A code and the checksum of what arrived, per object."""

    codes: bytes
    checksums: bytes


class OneSidedMemory(msgspec.Struct, frozen=True, array_like=True):
    """Memory of the client that the node may fetch from; ``base`` is its address. With ``gpu`` it
    is a GPU's, of the number ``device`` there."""

    base: int
    nbytes: int
    gpu: bool = False
    device: int = 0


class OpenOneSided(DataMessage, frozen=True):
    """Ask for a way by which either end reads the other's memory, with an engine of that kind."""

    kind: str
    backends: list[str]
    description: bytes
    memory: list[OneSidedMemory]


class OneSidedSegment(msgspec.Struct, frozen=True, array_like=True):
    """Where the engine finds a segment's page owners and data; bytes and addresses."""

    name: str
    owners: int
    data: int
    data_bytes: int


class OneSidedReady(DataMessage, frozen=True):
    """How the client reaches the node's segments, or ``why`` it cannot."""

    description: bytes
    segments: list[OneSidedSegment]
    why: str = ""


class PullBatch(DataMessage, frozen=True):
    """Store objects in granted slots; the node fetches them from the client's memory.

    sources: u64 per piece, offsets in ``memory``; lengths: u64 per piece and counts: i64, pieces
    per object, both empty if each object is one piece. checksums: as in WriteTail, or empty.
    """

    kind: str
    segment: str
    indexes: bytes
    offsets: bytes
    sizes: bytes
    capacities: bytes
    generations: bytes
    keys: list[bytes]
    parents: list[bytes]
    checksums: bytes
    sources: bytes
    memory: int = 0
    lengths: bytes = b""
    counts: bytes = b""


class Refused(DataMessage, frozen=True):
    """The request cannot be served; the connection is closed."""

    code: int
    text: str


DataRequest = OpenData | Attach | ReadBatch | WriteBatch | WriteTail | OpenOneSided | PullBatch
DataReply = DataReady | Attached | ReadHead | ReadTail | WriteDone | Refused | OneSidedReady

_encoder = msgspec.msgpack.Encoder()
_requests = msgspec.msgpack.Decoder(DataRequest)
_replies = msgspec.msgpack.Decoder(DataReply)
_MALFORMED = (msgspec.MsgspecError, RecursionError, UnicodeError, ValueError, OverflowError)
M = TypeVar("M", bound=DataMessage)
T = TypeVar("T")


def encode(message: DataMessage) -> bytes:
    """Return the message as a whole frame; raise ProtocolError if it is too large for one."""
    return frame(_encoder.encode(message))


def decode_request(payload: bytes | bytearray, wanted: type[M]) -> M:
    """Return the request in a frame's payload; ProtocolError if it is none of that type."""
    return _expect(_decode(_requests, payload), wanted)


def decode_any_request(payload: bytes | bytearray) -> DataRequest:
    """Return the request in a frame's payload; ProtocolError if it is none."""
    found: DataRequest = _decode(_requests, payload)
    return found


def decode_reply(payload: bytes | bytearray, wanted: type[M]) -> M:
    """Return the reply in a frame's payload; ProtocolError if it is none of that type."""
    return _expect(_decode(_replies, payload), wanted)


def frame_bytes(header: bytes | bytearray | memoryview, limit: int = FRAME_BYTES_MAX) -> int:
    """Return the length that a frame's first bytes tell; ProtocolError if it is not allowed."""
    size = int.from_bytes(header[:HEADER_BYTES], "little")
    if not 0 < size <= limit:
        raise ProtocolError(f"a frame of {size} bytes; 1 to {limit} are allowed")
    return size


def words(raw: bytes, count: int | None = None) -> npt.NDArray[np.uint64]:
    """Return the u64 array in a field; ProtocolError unless it has ``count`` items."""
    if len(raw) % WORD_BYTES or len(raw) > WORD_BYTES * BATCH_ITEMS_MAX:
        raise ProtocolError(f"an array of {len(raw)} bytes; at most {BATCH_ITEMS_MAX} words")
    found = np.frombuffer(raw, "<u8").astype(np.uint64)
    if count is not None and len(found) != count:
        raise ProtocolError(f"an array of {len(found)} items; {count} are expected")
    return found


def numbers(raw: bytes, count: int | None = None) -> npt.NDArray[np.int64]:
    """Return the i64 array in a field; ProtocolError unless it has ``count`` items."""
    return words(raw, count).view(np.int64)


def _decode(decoder: msgspec.msgpack.Decoder[T], payload: bytes | bytearray) -> T:
    try:
        return decoder.decode(payload)
    except _MALFORMED as error:
        raise ProtocolError(f"not a data message: {error}") from None


def _expect(found: object, wanted: type[M]) -> M:
    if isinstance(found, Refused) and wanted is not Refused:
        raise ProtocolError(f"refused with {found.code}: {found.text[:200]}")
    if not isinstance(found, wanted):
        raise ProtocolError(f"{type(found).__name__} where {wanted.__name__} was expected")
    return found
