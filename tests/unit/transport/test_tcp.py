"""What only a network can do to a batch: stop, lie, close, and the node's port against it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import numpy as np
import pytest
import xxhash

from moonpool.errors import DeadlineError, InvalidArgumentError, ProtocolError, TransferError
from moonpool.node.server import DataServer
from moonpool.node.writers import Writers
from moonpool.protocol import data
from moonpool.transport import copy, streams
from moonpool.transport.pool import ConnectionPool, open_data, parse_address
from moonpool.transport.segment import Segment
from moonpool.transport.tcp import TcpTransport
from moonpool.transport.wire import Wire, iovecs

from .support import Batch, batch, changed, keys, places

MIB = 1024 * 1024


def transport_to(server: DataServer, **options: float) -> TcpTransport:
    return TcpTransport(f"127.0.0.1:{server.port}", "segment", "client", timeout_s=20, **options)  # type: ignore[arg-type]


class Proxy:
    """Stands between client and node; ``tamper`` sees and may change each chunk to the client
    (or to the node); an empty result ends the connection."""

    def __init__(self, port: int, tamper: Callable[[bytes, bool], bytes]) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        self._target = port
        self._tamper = tamper
        self.port = self._server.getsockname()[1]
        self.accepted = 0
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            try:
                near, _ = self._server.accept()
            except OSError:
                return
            self.accepted += 1
            far = socket.create_connection(("127.0.0.1", self._target))
            for a, b, down in ((near, far, False), (far, near, True)):
                threading.Thread(target=self._pump, args=(a, b, down), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket, down: bool) -> None:
        try:
            while chunk := source.recv(65_536):
                chunk = self._tamper(chunk, down)
                if not chunk:
                    break
                target.sendall(chunk)
        except OSError:
            pass
        for each in (source, target):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def close(self) -> None:
        self._server.close()


@contextmanager
def through(
    server: DataServer, tamper: Callable[[bytes, bool], bytes]
) -> Iterator[tuple[TcpTransport, Proxy]]:
    proxy = Proxy(server.port, tamper)
    way = TcpTransport(f"127.0.0.1:{proxy.port}", "segment", "client", streams=1, timeout_s=20)
    yield way, proxy
    way.close()
    proxy.close()


def flip(total: int, *, down: bool) -> Callable[[bytes, bool], bytes]:
    """Change one bit of the byte ``total`` of a direction's payload-sized chunks."""
    seen = [0]

    def tamper(chunk: bytes, way: bool) -> bytes:
        if way is not down:
            return chunk
        at = total - seen[0]
        seen[0] += len(chunk)
        if not 0 <= at < len(chunk):
            return chunk
        return chunk[:at] + bytes([chunk[at] ^ 1]) + chunk[at + 1 :]

    return tamper


def test_a_bit_that_flips_on_the_way_back(server: DataServer) -> None:
    sizes = [100_000] * 5
    source = batch(1, sizes)
    where = places(sizes)
    direct = transport_to(server)
    written = direct.write(where, source.pieces, keys(5), [])
    where = changed(where, checksums=written.checksums)
    target = source.blank()
    with through(server, flip(250_000, down=True)) as (way, _proxy):
        codes = way.read(where, target.pieces)
    assert codes.tolist() == [0, 0, -801, 0, 0]
    payloads, expected = target.payloads(), source.payloads()
    assert [payloads[i] for i in (0, 1, 3, 4)] == [expected[i] for i in (0, 1, 3, 4)]
    direct.close()


def test_a_bit_that_flips_on_the_way_there(server: DataServer, segment: Segment) -> None:
    sizes = [100_000] * 5
    source = batch(1, sizes)
    with through(server, flip(250_000, down=False)) as (way, _proxy):
        written = way.write(places(sizes), source.pieces, keys(5), [])
    assert written.codes.tolist() == [0, 0, -801, 0, 0]
    assert [f.index for f in segment.scan(verify=True).found] == [0, 1, 3, 4]


@pytest.mark.parametrize("verb", ["read", "write"])
def test_a_connection_that_ends_in_the_middle(
    server: DataServer, segment: Segment, verb: str
) -> None:
    sizes = [1_000_000] * 6
    source = batch(1, sizes)
    where = places(sizes)
    passed = [0]

    def cut(chunk: bytes, down: bool) -> bytes:
        if down is (verb == "read"):
            passed[0] += len(chunk)
        return chunk if passed[0] < 2_500_000 else b""

    direct = transport_to(server)
    if verb == "read":
        written = direct.write(where, source.pieces, keys(6), [])
        where = changed(where, checksums=written.checksums)
    with through(server, cut) as (way, proxy):
        if verb == "read":
            codes = way.read(where, source.blank().pieces)
        else:
            codes = way.write(where, source.pieces, keys(6), []).codes
            assert segment.scan().found == []
        assert codes.tolist() == [-800] * 6
        assert proxy.accepted == 1
    again = direct.write(places(sizes, 100), source.pieces, keys(6), [])
    assert not again.codes.any()
    direct.close()


def test_a_node_that_is_not_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    way = TcpTransport(f"127.0.0.1:{port}", "segment", "client")
    assert way.read(places([10]), batch(1, [10]).pieces).tolist() == [-800]
    assert way.write(places([10]), batch(1, [10]).pieces, keys(1), []).codes.tolist() == [-800]
    way.close()


def test_a_node_that_does_not_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        way = TcpTransport(f"127.0.0.1:{silent.getsockname()[1]}", "s", "client", timeout_s=0.05)
        assert way.read(places([10]), batch(1, [10]).pieces).tolist() == [-800]
        way.close()


def test_a_node_that_was_started_anew(segment: Segment, server: DataServer) -> None:
    """Pooled connections to the old one are found out before anything is sent on them."""
    from .conftest import OneSegment

    first = DataServer(OneSegment(segment), Writers())
    first.start()
    way = TcpTransport(f"127.0.0.1:{first.port}", "segment", "client", timeout_s=20)
    source = batch(1, [5000])
    written = way.write(places([5000]), source.pieces, keys(1), [])
    first.close()
    second = DataServer(OneSegment(segment), Writers(), port=first.port)
    second.start()
    where = changed(places([5000]), checksums=written.checksums)
    assert way.read(where, source.blank().pieces).tolist() == [0]
    assert way.write(places([5000], 9), source.pieces, keys(1), []).codes.tolist() == [0]
    way.close()
    second.close()


def test_another_segment_or_none(server: DataServer) -> None:
    way = TcpTransport(f"127.0.0.1:{server.port}", "elsewhere", "client")
    assert way.read(places([10]), batch(1, [10]).pieces).tolist() == [-800]
    way.close()


def test_a_fenced_client_cannot_write(
    server: DataServer, writers: Writers, segment: Segment
) -> None:
    way = transport_to(server)
    source = batch(1, [5000] * 3)
    writers.fence("client", 11)
    written = way.write(places([5000] * 3, 10), source.pieces, keys(3), [])
    assert written.codes.tolist() == [-700, -700, 0]
    assert [f.index for f in segment.scan().found] == [2]
    way.close()


def test_a_full_pool_of_connections(server: DataServer) -> None:
    pool = ConnectionPool(f"127.0.0.1:{server.port}", "client", connections_max=1, timeout_s=0.05)
    way = TcpTransport(pool, "segment")
    with pool.connection():
        with pytest.raises(DeadlineError), pool.connection():
            pass
        assert way.read(places([10]), batch(1, [10]).pieces).tolist() == [-800]
    assert way.read(places([10]), batch(1, [10]).pieces).tolist() == [-704]
    pool.close()
    with pytest.raises(TransferError), pool.connection():
        pass


def test_too_many_connections_are_turned_away(segment: Segment) -> None:
    from .conftest import OneSegment

    server = DataServer(OneSegment(segment), Writers(), connections_max=2)
    server.start()
    wires = [open_data("127.0.0.1", server.port, "client", 20) for _ in range(2)]
    with pytest.raises(TransferError):
        open_data("127.0.0.1", server.port, "client", 20)
    for wire in wires:
        wire.close()
    server.close()


def test_attach_lasts_as_long_as_the_connection(server: DataServer, writers: Writers) -> None:
    wire = open_data("127.0.0.1", server.port, "client", 20)
    wire.send(data.Attach())
    found = data.decode_reply(wire.receive(), data.Attached)
    assert [s.name for s in found.segments] == ["segment"]
    assert writers.clients() == ["client"]
    gone = threading.Event()
    writers.on_gone = lambda _client, _generation: gone.set()
    writers.fence("client", 5)
    assert not gone.is_set()
    wire.close()
    assert gone.wait(20)


@pytest.mark.parametrize("wrong", ["", ":", "host", "host:", ":80", "h:0", "h:70000", "h:x"])
def test_addresses(wrong: str) -> None:
    with pytest.raises(InvalidArgumentError):
        parse_address(wrong)
    assert parse_address("[::1]:80") == ("::1", 80)


# --- the wire and the cutting of batches ------------------------------------------------------


def test_memory_in_many_pieces() -> None:
    near, far = (Wire(s) for s in socket.socketpair())
    source = batch(1, [1, 0, 70_000, 3_000_000, 5], 2000)
    target = source.blank()
    sender = threading.Thread(target=near.send_memory, args=(iovecs(source.pieces),))
    sender.start()
    far.receive_memory(iovecs(target.pieces))
    sender.join()
    assert target.payloads() == source.payloads()
    near.close()
    far.close()


@pytest.fixture(params=["compiled", "in parts"])
def loop(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "compiled":
        pytest.importorskip("numba")
        assert copy.prepare() == "numba"
    else:
        monkeypatch.setattr(copy, "_kernels", copy.Kernels(never=True))


def expected_sums(batch_: Batch) -> list[int]:
    return [xxhash.xxh3_64_intdigest(payload) for payload in batch_.payloads()]


@pytest.mark.usefixtures("loop")
@pytest.mark.parametrize("pieces", [1, 9, 3000])
def test_memory_that_is_hashed_on_its_way(pieces: int) -> None:
    near, far = (Wire(s) for s in socket.socketpair())
    source = batch(3, [1, 0, 70_000, 3_000_000, 5, 262_144, 0], pieces)
    target = source.blank()
    sent: list[list[int]] = []
    sender = threading.Thread(target=lambda: sent.append(near.send_hashed(source.pieces).tolist()))
    sender.start()
    got = far.receive_hashed(target.pieces).tolist()
    sender.join()
    assert target.payloads() == source.payloads()
    assert sent == [got] == [expected_sums(source)]
    near.close()
    far.close()


@pytest.mark.usefixtures("loop")
def test_a_hashed_receive_takes_no_more_than_its_own() -> None:
    near, far = (Wire(s) for s in socket.socketpair())
    source = batch(4, [50_000, 3], 4)
    target = source.blank()
    near.send_memory(iovecs(source.pieces))
    near.send(data.Attach())
    assert far.receive_hashed(target.pieces).tolist() == expected_sums(source)
    assert data.decode_request(far.receive(), data.Attach) == data.Attach()
    near.close()
    far.close()


@pytest.mark.usefixtures("loop")
@pytest.mark.parametrize("sizes", [[20 * MIB], [10_000] * 2000])
def test_what_ends_a_hashed_move(sizes: list[int]) -> None:
    near, far = (Wire(s) for s in socket.socketpair())
    big = batch(5, sizes, 1)
    near.within(0.02)
    with pytest.raises(DeadlineError):
        near.send_hashed(big.pieces)
    with pytest.raises(DeadlineError):
        near.receive_hashed(big.pieces)
    with pytest.raises(DeadlineError):
        near.receive_hashed(big.pieces)
    near.within(20)
    far.close()
    with pytest.raises(TransferError):
        near.receive_hashed(big.pieces)
    with pytest.raises(TransferError):
        near.send_hashed(big.pieces)
    near.close()
    with pytest.raises(TransferError):
        near.receive_hashed(big.pieces)


@pytest.mark.usefixtures("loop")
def test_a_peer_that_trickles_does_not_stretch_a_deadline() -> None:
    near, far = (Wire(s) for s in socket.socketpair())
    wanted = batch(6, [100 * MIB], 1)
    ended = threading.Event()

    def trickle() -> None:
        raw = socket.socket(fileno=far.fileno())
        while not ended.wait(0.01):
            # Without waiting: nobody reads any more once the deadline has passed.
            with suppress(BlockingIOError):
                raw.send(b"x" * 100, socket.MSG_DONTWAIT)
        raw.detach()

    sender = threading.Thread(target=trickle)
    sender.start()
    near.within(0.2)
    try:
        with pytest.raises(DeadlineError):
            near.receive_hashed(wanted.pieces)
    finally:
        ended.set()
        sender.join()
    near.close()
    far.close()


def test_connections_of_one_host_are_not_paced() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = Wire(socket.create_connection(server.getsockname()))
        far = Wire(server.accept()[0])
        for wire in (near, far):
            raw = socket.socket(fileno=wire.fileno())
            name = raw.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
            raw.detach()
            assert name.rstrip(b"\0") == b"reno"
            wire.close()


def test_a_deadline_ends_a_wait() -> None:
    near, far = (Wire(s) for s in socket.socketpair())
    near.within(0.02)
    with pytest.raises(DeadlineError):
        near.receive()
    with pytest.raises(DeadlineError):
        near.receive()
    big = batch(1, [20 * MIB])
    far.within(0.02)
    with pytest.raises(DeadlineError):
        far.send_memory(iovecs(big.pieces))
    near.close()
    far.close()


def test_a_closed_peer_and_a_long_frame() -> None:
    near, far = (Wire(s) for s in socket.socketpair())
    assert near.quiet()
    far.send(data.Attach())
    assert not near.quiet()
    assert data.decode_request(near.receive(), data.Attach) == data.Attach()
    far.send(data.Attach())
    with pytest.raises(ProtocolError):
        near.receive(limit=3)
    far.close()
    near.receive_memory(iovecs(batch(1, [len(data.encode(data.Attach())) - 4]).pieces))
    with pytest.raises(TransferError):
        near.receive_memory(iovecs(batch(1, [1]).pieces))
    near.close()
    assert not near.quiet()


def test_chunks_and_steps_cover_everything_once() -> None:
    rng = np.random.default_rng(5)
    for count in (0, 1, 2, 17, 300):
        sizes = rng.integers(0, 3 * MIB, count).astype(np.uint64)
        for cut in (streams.chunks(sizes, 4), streams.steps(sizes)):
            assert [i for a, b in cut for i in range(a, b)] == list(range(count))
            assert all(a < b for a, b in cut)
        assert len(streams.chunks(sizes, 4)) <= 4
        for a, b in streams.steps(sizes):
            assert sizes[a : b - 1].sum() <= streams.STEP_BYTES
    assert streams.chunks(np.array([MIB] * 2, np.uint64), 4) == [(0, 1), (1, 2)]


@pytest.mark.parametrize(
    ("round_trip_s", "expected"),
    [(0.0, 2), (0.001, 2), (0.0039, 2), (0.004, 4), (0.01, 4), (0.02, 8), (0.3, 8)],
)
def test_long_ways_get_more_connections(round_trip_s: float, expected: int) -> None:
    assert streams.width(2, round_trip_s, 8) == expected
    assert streams.width(4, round_trip_s, 8) == min(2 * expected, 8)
    assert streams.width(12, round_trip_s, 8) == 12  # what was asked for is never cut


def test_ranges_are_taken_in_turn_and_each_once() -> None:
    taken, lock = [], threading.Lock()
    slow = threading.Event()

    def run(first: int, last: int) -> None:
        if first == 0:  # the others are taken by the other worker meanwhile
            assert slow.wait(20)
        with lock:
            taken.append((first, last))
            if len(taken) == 9:
                slow.set()

    streams.run_in_turn(2, run, [(n, n + 1) for n in range(10)])
    assert taken == [*((n, n + 1) for n in range(1, 10)), (0, 1)]


def test_a_batch_on_a_long_way(server: DataServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Wire, "round_trip_s", lambda _self: 0.03)
    monkeypatch.setattr(streams, "WIDE_PART_BYTES", 8192)
    pool = ConnectionPool(f"127.0.0.1:{server.port}", "client", timeout_s=20)
    way = TcpTransport(pool, "segment", streams=2)
    sizes = [4096 + 512 * n for n in range(24)]
    source = batch(1, sizes)
    assert way.read(places([10]), batch(1, [10]).pieces).tolist() == [-704]
    assert pool.round_trip_s == 0.03  # known now: a connection is open
    written = way.write(places(sizes), source.pieces, keys(24), [])
    assert not written.codes.any()
    target = source.blank()
    where = changed(places(sizes), checksums=written.checksums)
    assert not way.read(where, target.pieces).any()
    assert target.payloads() == source.payloads()
    way.close()
    pool.close()


def test_no_thread_to_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    done: list[int] = []
    monkeypatch.setattr(threading.Thread, "start", refuse)
    streams.run_all([lambda i=i: done.append(i) for i in range(3)])  # type: ignore[misc]
    assert sorted(done) == [0, 1, 2]
