"""Hostile bytes to the data port: others go on, and nothing outside the segments is touched."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from moonpool.errors import ProtocolError
from moonpool.node.server import DataServer
from moonpool.node.storage import Storage
from moonpool.node.writers import Writers
from moonpool.protocol import data
from moonpool.protocol.framing import frame
from moonpool.transport.pool import open_data
from moonpool.transport.tcp import TcpTransport
from tests.unit.transport.support import batch, changed, keys, places

EXAMPLES = 600
INPUTS = 20
"""Connections per example: 12,000 in all."""
SEGMENT = "segment-0"
MIB = 1024 * 1024
GUARD = b"outside"

ODD_WORDS = [0, 1, 4096, 2**63, 2**64 - 1, 2**64 - 4096, 2**32, 2**20, 3 * MIB]


class Maker:
    """Inputs from a seed: cheap enough for thousands."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)

    def word(self) -> int:
        return self.rng.choice([*ODD_WORDS, self.rng.getrandbits(64), self.rng.getrandbits(22)])

    def array(self, count: int) -> bytes:
        """An array of the right length, or any bytes."""
        if self.rng.random() < 0.05:
            return self.rng.randbytes(self.rng.randrange(40))
        return np.array([self.word() for _ in range(count)], np.uint64).tobytes()

    def message(self) -> bytes:
        """A frame that looks like a request, with numbers of all sizes."""
        rng, count = self.rng, self.rng.randrange(5)
        name = rng.choice([SEGMENT, SEGMENT, SEGMENT, SEGMENT, "", "../x", "x" * 300])
        kind = rng.randrange(8)
        if kind == 0:
            return data.encode(data.OpenData(rng.randrange(3), 9, "y" * rng.randrange(200)))
        if kind == 1:
            return data.encode(data.WriteTail(self.array(count)))
        if kind <= 3:
            return data.encode(data.ReadBatch(name, *(self.array(count) for _ in range(3))))
        names = [rng.randbytes(rng.randrange(200)) for _ in range(count)]
        fields = [self.array(count) for _ in range(5)]
        if kind > 5:
            # Sizes that can be: the payload is taken in, wherever the offsets point.
            fields[2] = np.array([rng.randrange(3000) for _ in range(count)], np.uint64).tobytes()
        request = data.WriteBatch(name, *fields, names, [])  # type: ignore[arg-type, call-arg]
        return data.encode(request) + rng.randbytes(rng.randrange(9000))

    def connection(self) -> bytes:
        """What one connection sends after, or instead of, a proper greeting."""
        rng = self.rng
        opening = data.encode(data.OpenData(1, 1, "fuzz"))
        kind = rng.randrange(10)
        if kind == 0:
            return rng.randbytes(rng.randrange(300))
        if kind == 1:
            return opening + frame(rng.randbytes(rng.randrange(1, 300)))
        raw = b"".join(self.message() for _ in range(rng.randrange(1, 4)))
        if kind <= 4:
            at = rng.randrange(len(raw) + 1)
            raw = raw[:at] + (rng.randbytes(rng.randrange(1, 5)) + raw[at + 1 :]) * rng.randrange(2)
        return opening + raw


class Witness(threading.Thread):
    """A well-behaved client that writes and reads all the time in a range of its own."""

    def __init__(self, port: int) -> None:
        super().__init__()
        self.way = TcpTransport(f"127.0.0.1:{port}", SEGMENT, "witness", timeout_s=20)
        self.rounds = 0
        self.wrong: list[object] = []
        self._ending = threading.Event()

    def run(self) -> None:
        # The fuzz writes with any generation up to 2**64 - 1 anywhere; what it has taken is
        # taken, but a code of 0 must always mean the right bytes.
        source = batch(9, [5000] * 3)
        while not self._ending.is_set():
            where = places([5000] * 3, self.rounds % 1000 + 1, base=2 * MIB, index=100)
            written = self.way.write(where, source.pieces, keys(3), [])
            target = source.blank()
            codes = self.way.read(changed(where, checksums=written.checksums), target.pieces)
            good = [i for i in range(3) if codes[i] == 0]
            if any(target.payloads()[i] != source.payloads()[i] for i in good):
                self.wrong.append("bytes")
            if -800 in written.codes.tolist() + codes.tolist():
                self.wrong.append((written.codes.tolist(), codes.tolist()))
            self.rounds += 1

    def stop(self) -> None:
        self._ending.set()
        self.join(30)
        self.way.close()


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Storage, DataServer]]:
    root = tmp_path_factory.mktemp("fuzz")
    storage = Storage("n", str(root), 4 * MIB, 4 * MIB)
    storage.open()
    (root / "n" / "guard").write_bytes(GUARD)
    server = DataServer(storage, Writers())
    server.start()
    yield storage, server
    server.close()
    storage.close(delete=True)


@pytest.fixture(scope="module")
def witness(node: tuple[Storage, DataServer]) -> Iterator[Witness]:
    watching = Witness(node[1].port)
    watching.start()
    yield watching
    watching.stop()
    assert watching.wrong == []
    assert watching.rounds > 100


def send(port: int, raw: bytes) -> None:
    """Send to a new connection, and read until the node closes it."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as sock:
        try:
            sock.sendall(raw)
            sock.shutdown(socket.SHUT_WR)
            while sock.recv(65_536):
                pass
        except TimeoutError:
            raise
        except OSError:  # it was closed before we had sent everything
            pass


@settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(seed=st.integers(0, 2**63), drawn=st.binary(max_size=400))
@pytest.mark.timeout(600)
def test_hostile_connections(
    node: tuple[Storage, DataServer], witness: Witness, seed: int, drawn: bytes
) -> None:
    storage, server = node
    maker = Maker(seed)
    send(server.port, drawn)
    for _ in range(INPUTS):
        send(server.port, maker.connection())
    assert witness.is_alive()
    segment = storage.segments()[0]
    # The header is in the same mapping, right before what peers may write to.
    assert Path(segment.path).read_bytes()[:4096] == segment.parts().memory[:4096].tobytes()
    assert type(segment).open(segment.path, writable=False).header == segment.header
    assert (storage.directory / "guard").read_bytes() == GUARD


def test_the_node_still_serves(node: tuple[Storage, DataServer]) -> None:
    wire = open_data("127.0.0.1", node[1].port, "after", 20)
    wire.send(data.Attach())
    assert data.decode_reply(wire.receive(), data.Attached).segments
    wire.close()


@settings(max_examples=1000, deadline=None)
@given(seed=st.integers(0, 2**63), drawn=st.binary(max_size=200))
def test_decoding_only_raises_protocol_errors(seed: int, drawn: bytes) -> None:
    maker = Maker(seed)
    for raw in (drawn, *(maker.message()[4:] for _ in range(10))):
        for decode in (
            data.decode_any_request,
            lambda each: data.decode_reply(each, data.ReadHead),
            data.frame_bytes,
            data.words,
        ):
            with contextlib.suppress(ProtocolError):
                decode(raw)
