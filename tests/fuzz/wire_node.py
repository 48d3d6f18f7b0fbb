"""The node's data port: its decoder, and connections that send what they like."""

from __future__ import annotations

import random
import shutil
import socket
import tempfile
import threading
from pathlib import Path

import numpy as np

from moonpool.errors import MoonpoolError, ProtocolError
from moonpool.node.handler import Handler
from moonpool.node.storage import Storage
from moonpool.node.writers import Writers
from moonpool.protocol import data
from moonpool.protocol.framing import frame
from moonpool.transport.segment import Segment
from moonpool.transport.shm import ShmTransport
from moonpool.transport.wire import Wire
from tests.fuzz import mutate
from tests.fuzz.target import REFUSED, TAKEN, Target, require
from tests.integration.test_node_fuzz import Maker
from tests.unit.transport.support import batch, changed, keys, places

MIB = 1 << 20
GUARD = b"outside"


class DataFrames(Target):
    """Single messages of the data port to the decoders of both of its ends."""

    name = "data port's messages"
    share = 10.0
    episode = 1000

    def take(self, chance: random.Random) -> str:
        raw = Maker(chance.getrandbits(60)).message()[4:]
        if chance.random() < 0.7:
            raw = mutate.bytes_of(chance, raw)
        refused = 0
        for decode in (
            data.decode_any_request,
            lambda each: data.decode_reply(each, data.ReadHead),
            lambda each: data.decode_reply(each, data.WriteDone),
            lambda each: data.decode_reply(each, data.Attached),
            data.words,
        ):
            try:
                decode(raw)
            except ProtocolError:
                refused += 1
        return REFUSED if refused == 5 else TAKEN


class DataPort(Target):
    """Whole connections to a node with a segment."""

    name = "data port's connections"
    share = 4.0
    episode = 100

    def begin(self) -> None:
        self._root = Path(tempfile.mkdtemp(prefix="fuzz-", dir="/dev/shm"))
        self._storage = Storage("n", str(self._root), 2 * MIB, 2 * MIB)
        self._storage.open()
        (self._root / "n" / "guard").write_bytes(GUARD)
        self._writers = Writers()

    def take(self, chance: random.Random) -> str:
        near, far = socket.socketpair()
        raw = Maker(chance.getrandbits(60)).connection()
        if chance.random() < 0.3:
            raw = frame(b"\x94\xa8OpenData\x01\x01\xa4fuzz") + mutate.bytes_of(chance, raw)
        heard: list[bytes] = []
        talking = threading.Thread(target=_talk, args=(far, raw, heard))
        talking.start()
        wire = Wire(near)
        try:
            Handler(wire, self._storage, self._writers).run()
        except (MoonpoolError, MemoryError, ValueError, OverflowError):
            pass  # what the server takes for the end of a connection
        finally:
            wire.close()
            talking.join(20)
        answer = b"".join(heard)
        return TAKEN if b"ReadTail" in answer or b"WriteDone" in answer else REFUSED

    def end(self) -> None:
        segment = self._storage.segments()[0]
        head = segment.parts().memory[:4096].tobytes()
        require(Path(segment.path).read_bytes()[:4096] == head, "the header is as it was")
        opened = Segment.open(segment.path, writable=False)
        require(opened.header == segment.header, "the header is good")
        opened.close()
        require((self._root / "n" / "guard").read_bytes() == GUARD, "nothing else is touched")
        self._use(segment)
        self._storage.close(delete=True)
        shutil.rmtree(self._root)

    def _use(self, segment: Segment) -> None:
        """Write and read: a code of 0 means the right bytes."""
        way, source = ShmTransport(segment), batch(9, [5000] * 3)
        where = places([5000] * 3, 1 << 40, base=MIB, index=100)
        written = way.write(where, source.pieces, keys(3), [])
        target = source.blank()
        codes = way.read(changed(where, checksums=written.checksums), target.pieces)
        for i in np.flatnonzero((codes == 0) & (written.codes == 0)).tolist():
            require(target.payloads()[i] == source.payloads()[i], "what is read was written")


def _talk(sock: socket.socket, raw: bytes, heard: list[bytes]) -> None:
    """Send everything, then read until the end."""
    with sock:
        sock.settimeout(20)
        try:
            reader = threading.Thread(target=_drain, args=(sock, heard))
            reader.start()
            sock.sendall(raw)
            sock.shutdown(socket.SHUT_WR)
            reader.join(20)
        except OSError:
            reader.join(20)  # it was closed before we had sent everything


def _drain(sock: socket.socket, heard: list[bytes]) -> None:
    try:
        while part := sock.recv(65_536):
            heard.append(part)
    except OSError:
        return
