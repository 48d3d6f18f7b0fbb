"""Transports whose callers' memory is not the processor's."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from moonpool.node.server import DataServer
from moonpool.transport import tcp
from moonpool.transport.base import Transport
from moonpool.transport.segment import Segment
from moonpool.transport.shm import ShmTransport
from moonpool.transport.tcp import TcpTransport

from .far import FarCopier, far
from .support import batch, changed, keys, places

Opened = tuple[Transport, FarCopier]


@pytest.fixture(params=["shm", "tcp"])
def opened(
    request: pytest.FixtureRequest, segment: Segment, server: DataServer
) -> Iterator[Opened]:
    copier = FarCopier()
    way: Transport
    if request.param == "shm":
        way = ShmTransport(Segment.open(segment.path), copier)
    else:
        address = f"127.0.0.1:{server.port}"
        way = TcpTransport(address, "segment", "client", timeout_s=20.0, copier=copier)
    yield way, copier
    way.close()
    assert not copier.lent


@pytest.mark.parametrize("sizes", [[4096], [100_000] * 20])
def test_a_copier_that_fails_fails_the_call(opened: Opened, sizes: list[int]) -> None:
    way, copier = opened
    source, count = batch(1, sizes), len(sizes)
    where = places(sizes)
    copier.fail = True
    written = way.write(where, far(source.pieces), keys(count), [])
    assert written.codes.tolist() == [-800] * count
    copier.fail = False
    where = places(sizes, 100)
    written = way.write(where, far(source.pieces), keys(count), [])
    assert not written.codes.any()
    where = changed(where, checksums=written.checksums)
    target = source.blank()
    copier.fail = True
    assert way.read(where, far(target.pieces)).tolist() == [-800] * count
    copier.fail = False
    assert not way.read(where, far(target.pieces)).any()
    assert target.payloads() == source.payloads()


def test_what_failed_was_not_committed(opened: Opened, segment: Segment) -> None:
    way, copier = opened
    copier.fail = True
    way.write(places([5000] * 3), far(batch(1, [5000] * 3).pieces), keys(3), [])
    assert segment.scan().found == []


def test_only_what_is_right_is_scattered(opened: Opened) -> None:
    way, _copier = opened
    sizes = [5000] * 20
    source = batch(1, sizes)
    where = places(sizes, 7)
    written = way.write(where, far(source.pieces), keys(20), [])
    generations = where.generations.tolist()
    generations[4] += 1
    target = source.blank()
    codes = way.read(
        changed(where, generations=generations, checksums=written.checksums), far(target.pieces)
    )
    assert np.flatnonzero(codes).tolist() == [4]
    got, expected = target.payloads(), source.payloads()
    assert got[4] == bytes(5000)
    assert [got[i] for i in range(20) if i != 4] == [expected[i] for i in range(20) if i != 4]


def test_staging_is_used_in_bounded_parts(
    segment: Segment, server: DataServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tcp, "STAGED_BYTES", 300_000)
    copier = FarCopier()
    way = TcpTransport(f"127.0.0.1:{server.port}", "segment", "client", copier=copier)
    sizes = [100_000] * 40 + [700_000]
    source = batch(1, sizes)
    where = places(sizes)
    written = way.write(where, far(source.pieces), keys(len(sizes)), [])
    assert not written.codes.any()
    target = source.blank()
    codes = way.read(changed(where, checksums=written.checksums), far(target.pieces))
    assert not codes.any()
    assert target.payloads() == source.payloads()
    assert copier.lent_bytes_max <= 300_000 + 700_000
    assert copier.copies >= 2 * 14
    way.close()


def test_a_mapping_is_announced_and_given_up(segment: Segment) -> None:
    copier = FarCopier()
    opened = Segment.open(segment.path)
    way = ShmTransport(opened, copier)
    assert copier.attached == {opened.address: opened.geometry.data_bytes}
    way.close()
    way.close()
    assert copier.attached == {}


def test_no_staging_to_be_had(server: DataServer, monkeypatch: pytest.MonkeyPatch) -> None:
    copier = FarCopier()
    monkeypatch.setattr(copier, "staging", _refuse)
    way = TcpTransport(f"127.0.0.1:{server.port}", "segment", "client", copier=copier)
    source = batch(1, [5000])
    assert way.write(places([5000]), far(source.pieces), keys(1), []).codes.tolist() == [-800]
    assert way.read(places([5000]), far(source.pieces)).tolist() == [-800]
    way.close()


def _refuse(nbytes: int) -> Callable[[], None]:
    from moonpool.errors import TransferError

    raise TransferError(f"no room for {nbytes} bytes")
