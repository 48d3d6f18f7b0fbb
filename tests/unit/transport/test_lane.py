"""Several requests on one connection: in order, together when it breaks, and nothing left."""

from __future__ import annotations

import socket
import threading

import numpy as np
import pytest

from moonpool.errors import DeadlineError, TransferError
from moonpool.node.server import DataServer
from moonpool.node.writers import Writers
from moonpool.transport import streams
from moonpool.transport.lane import Exchange, Lane
from moonpool.transport.pool import DEPTH_MAX, ConnectionPool
from moonpool.transport.segment import Segment
from moonpool.transport.tcp import TcpTransport
from moonpool.transport.wire import Wire

from .conftest import OneSegment
from .support import batch, changed, keys, places


@pytest.fixture
def ends() -> tuple[Wire, Wire]:
    near, far = socket.socketpair()
    return Wire(near), Wire(far)


def test_replies_are_read_in_the_order_of_the_requests(ends: tuple[Wire, Wire]) -> None:
    lane = Lane(ends[0])
    order: list[str] = []
    first_sent, second_sent = threading.Event(), threading.Event()

    def second() -> None:
        first_sent.wait(20)
        with Exchange(lane, 20, 20) as exchange:
            order.append("second sends")
            second_sent.set()
            exchange.sent()
            order.append("second receives")

    helper = threading.Thread(target=second)
    helper.start()
    with Exchange(lane, 20, 20) as exchange:
        first_sent.set()
        exchange.sent()
        assert second_sent.wait(20)
        order.append("first receives")
    helper.join()
    assert order == ["second sends", "first receives", "second receives"]
    for wire in ends:
        wire.close()


def test_what_waits_fails_with_what_broke(ends: tuple[Wire, Wire]) -> None:
    lane = Lane(ends[0])
    waiting = threading.Event()
    failures: list[BaseException] = []

    def second() -> None:
        try:
            with Exchange(lane, 20, 20) as exchange:
                waiting.set()
                exchange.sent()
        except TransferError as error:
            failures.append(error)

    helper = threading.Thread(target=second)

    def first() -> None:
        with Exchange(lane, 20, 20) as exchange:
            helper.start()
            exchange.sent()
            assert waiting.wait(20)
            raise KeyError

    with pytest.raises(KeyError):
        first()
    helper.join()
    assert len(failures) == 1
    with pytest.raises(TransferError), Exchange(lane, 20, 20):
        pass
    for wire in ends:
        wire.close()


def test_nobody_waits_for_ever(ends: tuple[Wire, Wire]) -> None:
    lane = Lane(ends[0])
    lane.begin(20)
    with pytest.raises(DeadlineError), Exchange(lane, 20, 0.01):
        pass
    for wire in ends:
        wire.close()


def test_large_requests_share_connections(server: DataServer) -> None:
    pool = ConnectionPool(f"127.0.0.1:{server.port}", "client")
    with pool.lane(width=2) as one, pool.lane(width=2) as two:
        assert one is not two
        with pool.lane(width=2) as three:
            assert three in (one, two)
            assert server.connections() == 2
            with pool.connection() as alone:
                assert alone not in (one.wire, two.wire)
                with pool.lane(width=3) as four:
                    assert four.wire is not alone
    pool.close()


def test_a_connection_has_room_for_so_many(server: DataServer) -> None:
    pool = ConnectionPool(f"127.0.0.1:{server.port}", "c", connections_max=1, timeout_s=0.05)
    lanes = [pool.lane(width=1) for _ in range(DEPTH_MAX + 1)]
    for lane in lanes[:-1]:
        lane.__enter__()
    with pytest.raises(DeadlineError):
        lanes[-1].__enter__()
    for lane in lanes[:-1]:
        lane.__exit__(None, None, None)
    with pool.lane(width=1):
        assert server.connections() == 1
    pool.close()


def test_many_batches_at_once_on_one_connection(segment: Segment) -> None:
    server = DataServer(OneSegment(segment), Writers(), connections_max=1)
    server.start()
    way = TcpTransport(f"127.0.0.1:{server.port}", "segment", "client", streams=1, timeout_s=20)
    sizes = [streams.CHUNK_BYTES_MIN // 2 + 77] * 3
    span = 2 * 3 * streams.CHUNK_BYTES_MIN
    wrong: list[object] = []

    def work(number: int) -> None:
        source = batch(number, sizes)
        where = places(sizes, base=number * span // 2, index=3 * number)
        written = way.write(where, source.pieces, keys(3), [])
        target = source.blank()
        where = changed(where, checksums=written.checksums)
        codes = way.read(where, target.pieces)
        if written.codes.any() or codes.any() or target.payloads() != source.payloads():
            wrong.append((number, written.codes, codes))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    way.close()
    server.close()
    assert server.connections() == 0


def test_a_peer_that_stops_reading_fails_all_in_time() -> None:
    """It greets, then never takes anything any more."""
    from moonpool.protocol import data

    accepted: list[Wire] = []
    listening = socket.create_server(("127.0.0.1", 0))

    def greet() -> None:
        wire = Wire(listening.accept()[0])
        wire.receive()
        wire.send(data.DataReady(1, "node"))
        accepted.append(wire)

    helper = threading.Thread(target=greet)
    helper.start()
    port = listening.getsockname()[1]
    way = TcpTransport(f"127.0.0.1:{port}", "segment", "client", streams=1, timeout_s=0.1)
    sizes = [8 * streams.CHUNK_BYTES_MIN]
    codes: list[int] = []

    def work() -> None:
        written = way.write(places(sizes), batch(1, sizes).pieces, keys(1), [])
        codes.extend(np.asarray(written.codes).tolist())

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    helper.join()
    assert codes == [-800] * 3
    way.close()
    listening.close()
    for wire in accepted:
        wire.close()
