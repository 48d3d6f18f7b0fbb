"""Frames: a u32 length (little endian) and that many bytes; sans I/O, bounded."""

from __future__ import annotations

from moonpool.errors import ProtocolError

FRAME_BYTES_MAX = 64 * 1024 * 1024
"""The longest frame, without its length."""
HELLO_BYTES_MAX = 4096
"""The longest frame before a peer has said who it is."""
HEADER_BYTES = 4


def frame(payload: bytes) -> bytes:
    """Return the payload with its length in front; raise ProtocolError if it is too long."""
    size = len(payload)
    if not 0 < size <= FRAME_BYTES_MAX:
        raise ProtocolError(f"a frame of {size} bytes; 1 to {FRAME_BYTES_MAX} are allowed")
    return size.to_bytes(HEADER_BYTES, "little") + payload


class FrameDecoder:
    """Cuts a byte stream into frames.

    ``limit`` bounds a frame's bytes and may be raised when the peer is known. At most one frame
    that is not complete is held back. After a ProtocolError the stream is lost.
    """

    __slots__ = ("_held", "_need", "limit")

    def __init__(self, limit: int = FRAME_BYTES_MAX) -> None:
        self.limit = limit
        self._held = bytearray()
        self._need = HEADER_BYTES

    @property
    def held_bytes(self) -> int:
        """Bytes of the frame that is not complete yet."""
        return len(self._held)

    @property
    def missing_bytes(self) -> int:
        """Bytes until something more can be said about the frame that is not complete yet."""
        return self._need - len(self._held)

    def feed(self, data: bytes | memoryview) -> list[bytes]:
        """Return the frames that ``data`` completes; raise ProtocolError for a bad length."""
        if self._held:
            self._held += data
            if len(self._held) < self._need:
                return []
            data, self._held = memoryview(self._held), bytearray()
        frames: list[bytes] = []
        start, end = 0, len(data)
        need = HEADER_BYTES
        while end - start >= HEADER_BYTES:
            body = start + HEADER_BYTES
            size = int.from_bytes(data[start:body], "little")
            if not 0 < size <= self.limit:
                raise ProtocolError(f"a frame of {size} bytes; 1 to {self.limit} are allowed")
            if end - body < size:
                need = HEADER_BYTES + size
                break
            start = body + size
            frames.append(bytes(data[body:start]))
        self._need = need
        if start < end:
            self._held += data[start:]
        return frames
