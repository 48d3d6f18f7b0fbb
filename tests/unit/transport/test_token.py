"""The data port of a pool with a token: without it one may look, with a wrong one nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from moonpool.errors import MoonpoolError, TransferError
from moonpool.node.server import DataServer
from moonpool.node.writers import Writers
from moonpool.protocol import data
from moonpool.transport.pool import open_data
from moonpool.transport.segment import Segment
from moonpool.transport.tcp import TcpTransport

from .conftest import OneSegment
from .support import batch, changed, keys, places

SIZES = [5000, 100]


@pytest.fixture
def port(segment: Segment, writers: Writers) -> Iterator[int]:
    server = DataServer(OneSegment(segment), writers, token="secret")
    server.start()
    yield int(server.port)
    server.close()


def way(port: int, token: str) -> TcpTransport:
    return TcpTransport(f"127.0.0.1:{port}", "segment", "client", timeout_s=20.0, token=token)


def test_who_has_the_token_writes_and_who_has_none_reads(port: int) -> None:
    source, where = batch(1, SIZES), places(SIZES)
    owner, looker = way(port, "secret"), way(port, "")
    written = owner.write(where, source.pieces, keys(2), [])
    assert written.codes.tolist() == [0, 0]
    target = source.blank()
    seen = changed(where, checksums=written.checksums)
    assert looker.read(seen, target.pieces).tolist() == [0, 0]
    assert target.payloads() == source.payloads()
    owner.close()
    looker.close()


def test_without_the_token_nothing_is_written_or_mapped(port: int, segment: Segment) -> None:
    source, where = batch(1, SIZES), places(SIZES)
    looker = way(port, "")
    assert looker.write(where, source.pieces, keys(2), []).codes.tolist() == [-800, -800]
    looker.close()
    assert not segment.scan().found
    assert not segment.data().any()
    wire = open_data("127.0.0.1", port, "client", 5.0)
    wire.within(5.0)
    wire.send(data.Attach())
    with pytest.raises(MoonpoolError, match="needs the pool's token"):
        data.decode_reply(wire.receive(), data.Attached)
    wire.close()


def test_a_wrong_token_opens_nothing(port: int) -> None:
    with pytest.raises(TransferError, match="the token is wrong"):
        open_data("127.0.0.1", port, "client", 5.0, "guess")
