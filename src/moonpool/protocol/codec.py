"""Messages to frames and back: ``[request id, message]`` in MessagePack.

Decoding is typed: whatever does not have the shape of a known message is a ProtocolError.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from moonpool.core.messages import Hello, Message, Push, Reply, Request
from moonpool.errors import InvalidArgumentError, ProtocolError
from moonpool.protocol.framing import FRAME_BYTES_MAX, HEADER_BYTES

PUSH_ID = 0
"""The request id of what wants no answer: the master's pushes, and Release."""
REQUEST_ID_MAX = 2**32 - 1
ROLES: Final = ("client", "node", "tool")
PEER_CHARS_MAX = 128

RequestId = Annotated[int, msgspec.Meta(ge=0, le=REQUEST_ID_MAX)]

_encoder = msgspec.msgpack.Encoder()
_requests = msgspec.msgpack.Decoder(tuple[RequestId, Request])
_replies = msgspec.msgpack.Decoder(tuple[RequestId, Reply | Push])
_MALFORMED = (msgspec.MsgspecError, RecursionError, UnicodeError, ValueError, OverflowError)


def encode(request_id: int, message: Message) -> bytes:
    """Return the message as a whole frame.

    Raises ProtocolError if it is too large for one, InvalidArgumentError for what has no place on
    the wire, such as a number over 64 bits.
    """
    try:
        payload = _encoder.encode((request_id, message))
    except (OverflowError, TypeError, ValueError) as error:
        raise InvalidArgumentError(f"{type(message).__name__} cannot be sent: {error}") from None
    size = len(payload)
    if size > FRAME_BYTES_MAX:
        raise ProtocolError(
            f"a {type(message).__name__} of {size} bytes; {FRAME_BYTES_MAX} are allowed"
        )
    return size.to_bytes(HEADER_BYTES, "little") + payload


def decode_request(payload: bytes | memoryview) -> tuple[int, Request]:
    """Return (request id, request) of a frame's payload, or raise ProtocolError."""
    try:
        return _requests.decode(payload)
    except _MALFORMED as error:
        raise ProtocolError(f"not a request: {error}") from None


def decode_reply(payload: bytes | memoryview) -> tuple[int, Reply | Push]:
    """Return (request id, reply or push) of a frame's payload, or raise ProtocolError."""
    try:
        return _replies.decode(payload)
    except _MALFORMED as error:
        raise ProtocolError(f"not a reply: {error}") from None


def check_hello(request: Request) -> Hello:
    """Return the request if it is a well-formed Hello, or raise ProtocolError."""
    if not isinstance(request, Hello):
        raise ProtocolError(f"the first message was {type(request).__name__}, not Hello")
    if request.role not in ROLES:
        raise ProtocolError(f"a role {request.role[:32]!r}; {', '.join(ROLES)} are allowed")
    if not 0 < len(request.peer) <= PEER_CHARS_MAX or not request.peer.isprintable():
        raise ProtocolError(
            f"a peer name of {len(request.peer)} characters; 1 to {PEER_CHARS_MAX} printable ones"
        )
    return request
