"""Segments of nodes on this host, mapped: for as long as that lasts the node is told.

A connection to the node stays open, and the segment's users file is locked (shared), so that the
node, or the one that starts in its place, knows who may still write.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np

from moonpool.core.messages import SegmentInfo
from moonpool.errors import ChecksumError, InvalidArgumentError, MoonpoolError, TransferError
from moonpool.protocol import data
from moonpool.transport import copy
from moonpool.transport.base import I64, Copier, Pieces, Places, Written
from moonpool.transport.batch import chosen
from moonpool.transport.layout import doubt_of, hash_bytes
from moonpool.transport.pool import open_data, parse_address
from moonpool.transport.segment import Segment
from moonpool.transport.shm import ShmTransport
from moonpool.transport.small import Place
from moonpool.transport.wire import Wire


class Attachment:
    """The connection that tells a node that its segments may be mapped here.

    ``on_end`` is called, in another thread, when the node has closed it.
    """

    def __init__(
        self,
        address: str,
        client: str,
        timeout_s: float,
        token: str,
        on_end: Callable[[Attachment], None],
    ) -> None:
        """Attach. Raises TransferError, ProtocolError."""
        self.address = address
        self.ended = False
        self.users: set[AttachedTransport] = set()
        self._on_end = on_end
        host, port = parse_address(address)
        self._wire: Wire = open_data(host, port, client, timeout_s, token)
        try:
            self._wire.within(timeout_s)
            self._wire.send(data.Attach())
            self.found = data.decode_reply(self._wire.receive(), data.Attached)
        except BaseException:
            self._wire.close()
            raise
        threading.Thread(target=self._watch, name="moonpool-attached", daemon=True).start()

    def segment(self, info: SegmentInfo) -> data.AttachedSegment:
        """Return where a segment of the node is; raise TransferError unless the master and the
        node agree about that."""
        for found in self.found.segments:
            if (found.name, found.path, self.found.host) == (info.name, info.path, info.host):
                if found.users and Path(found.users).parent != Path(found.path).parent:
                    break
                return found
        raise TransferError(f"the node at {self.address} has no segment {info.name!r} to map")

    def end(self) -> None:
        """Close the connection."""
        self._wire.interrupt()

    def _watch(self) -> None:
        with contextlib.suppress(OSError):
            self._wire.wait_for_end()
        self.ended = True
        self._on_end(self)
        self._wire.close()


class AttachedTransport:
    """A mapped segment. When the node goes away it closes by itself, and ``lost`` is set."""

    def __init__(
        self,
        info: SegmentInfo,
        attachment: Attachment,
        on_close: Callable[[AttachedTransport], None],
        copier: Copier = copy.HOST,
        *,
        verify: bool = False,
    ) -> None:
        """Map the segment; ``verify``: compare what is read with its checksum.

        Raises TransferError, InvalidArgumentError, OSError.
        """
        self.attachment = attachment
        self.lost = False
        self._verify = verify
        self._on_close = on_close
        self._free = threading.Lock()
        self._active = 0
        where = attachment.segment(info)
        self._lock_fd = _lock_shared(where.users)
        try:
            segment = Segment.open(where.path)
            if (segment.header.name, segment.header.node) != (info.name, info.node):
                segment.close()
                raise InvalidArgumentError(f"{where.path} is another segment")
        except BaseException:
            self._unlock()
            raise
        self._shm = ShmTransport(segment, copier)
        doubt = doubt_of(where.path)
        self._doubt = doubt if doubt.exists() else None

    def read(self, places: Places, memory: Pieces) -> I64:
        """Copy objects into memory; see Transport."""
        self._enter()
        try:
            # Before: the node may be done with comparing while this reads what is damaged.
            doubtful = self._is_doubtful()
            codes = self._shm.read(places, memory)
            if doubtful:
                self._compare(places, codes)
            return codes
        finally:
            self._leave()

    def write(
        self, places: Places, memory: Pieces, keys: list[bytes], parents: list[bytes]
    ) -> Written:
        """Write objects and commit their slots; see Transport."""
        self._enter()
        try:
            return self._shm.write(places, memory, keys, parents)
        finally:
            self._leave()

    def write_buffer(
        self, place: Place, value: memoryview, key: bytes, parent: bytes
    ) -> tuple[int, int]:
        """Write one small object; return its code and checksum."""
        self._enter()
        try:
            return self._shm.write_buffer(place, value, key, parent)
        finally:
            self._leave()

    def read_buffer(self, place: Place, target: memoryview) -> int:
        """Read one small object; return its code."""
        self._enter()
        try:
            doubtful = self._is_doubtful()
            code = self._shm.read_buffer(place, target)
            if code == 0 and doubtful:
                known = self._shm.segment.checksum_at(place.slot, place.generation)
                code = 0 if hash_bytes(target[: place.size]) == known else ChecksumError.code
            return code
        finally:
            self._leave()

    def close(self) -> None:
        """Unmap; the node is told once no call uses the mapping any more."""
        with self._free:
            if self.lost:
                return
            self.lost = True
            self._shm.close()
            if self._active == 0:
                self._gone()

    def _is_doubtful(self) -> bool:
        """Tell whether what is read has to be compared: always, or as long as the node has not
        gone through what was there before it started."""
        if self._doubt is not None and not self._doubt.exists():
            self._doubt = None
        return self._verify or self._doubt is not None

    def _compare(self, places: Places, codes: I64) -> None:
        """Set the codes of objects that are not what was put."""
        good = np.flatnonzero(codes == 0)
        taken = chosen(places, good)
        segment = self._shm.segment
        keep = segment.parts()
        sums = copy.digest(copy.whole(taken.offsets + np.uint64(segment.address), taken.sizes))
        del keep
        codes[good[sums != taken.checksums]] = ChecksumError.code

    def _enter(self) -> None:
        with self._free:
            self._active += 1

    def _leave(self) -> None:
        with self._free:
            self._active -= 1
            if self.lost and self._active == 0:
                self._gone()
        if self._shm.segment.lost:
            self.close()  # a later use maps the file anew, as far as there is one

    def _gone(self) -> None:
        self._unlock()
        self._on_close(self)

    def _unlock(self) -> None:
        if self._lock_fd is not None:
            os.close(self._lock_fd)
            self._lock_fd = None


def _lock_shared(path: str) -> int | None:
    if not path:
        return None
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        raise TransferError(f"{path}: the node is taking its segment over") from None
    except BaseException:
        os.close(fd)
        raise
    return fd


class Attachments:
    """One attachment for each node that is in use."""

    def __init__(
        self, client: str, timeout_s: float, token: str = "", copier: Copier = copy.HOST
    ) -> None:
        self._client = client
        self._copier = copier
        self._token = token
        self._timeout_s = timeout_s
        self.verify = False
        """Whether what is read is always compared with its checksum."""
        self._lock = threading.RLock()
        self._by_address: dict[str, Attachment] = {}

    def open(self, info: SegmentInfo) -> AttachedTransport:
        """Map a segment. Raises TransferError, ProtocolError, InvalidArgumentError, OSError."""
        with self._lock:
            attachment = self._by_address.get(info.address)
            if attachment is None or attachment.ended:
                attachment = self._attach(info.address)
            try:
                transport = AttachedTransport(
                    info, attachment, self._closed, self._copier, verify=self.verify
                )
            except (MoonpoolError, OSError):
                if not attachment.users:
                    self._end(attachment)
                raise
            attachment.users.add(transport)
            return transport

    def _attach(self, address: str) -> Attachment:
        attachment = Attachment(address, self._client, self._timeout_s, self._token, self._ended)
        self._by_address[address] = attachment
        return attachment

    def _closed(self, transport: AttachedTransport) -> None:
        with self._lock:
            attachment = transport.attachment
            attachment.users.discard(transport)
            if not attachment.users:
                self._end(attachment)

    def _end(self, attachment: Attachment) -> None:
        attachment.end()
        if self._by_address.get(attachment.address) is attachment:
            del self._by_address[attachment.address]

    def _ended(self, attachment: Attachment) -> None:
        with self._lock:
            if self._by_address.get(attachment.address) is attachment:
                del self._by_address[attachment.address]
            users = list(attachment.users)
        for transport in users:
            transport.close()
