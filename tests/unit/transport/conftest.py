"""A segment and each way to it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from moonpool.node.server import DataServer
from moonpool.node.writers import Writers
from moonpool.protocol.data import AttachedSegment
from moonpool.transport import copy, layout
from moonpool.transport.base import Copier, Transport
from moonpool.transport.segment import Segment
from moonpool.transport.shm import ShmTransport
from moonpool.transport.tcp import TcpTransport

from .far import FarCopier, FarTransport

DATA_BYTES = 16 * 1024 * 1024


class OneSegment:
    """A node's shelf with a single segment."""

    name = "node"
    host = "host"

    def __init__(self, segment: Segment) -> None:
        self._segment = segment

    def segment(self, name: str) -> Segment | None:
        return self._segment if name == self._segment.header.name else None

    def attachable(self) -> list[AttachedSegment]:
        return [AttachedSegment("segment", self._segment.path, self._segment.header.epoch)]


@pytest.fixture
def segment(tmp_path: Path) -> Iterator[Segment]:
    header = layout.new_header("node", "segment", layout.Geometry.holding(DATA_BYTES))
    made = Segment.create(tmp_path / "segment.seg", header)
    yield made
    made.close()


@pytest.fixture
def writers() -> Writers:
    return Writers()


@pytest.fixture
def server(segment: Segment, writers: Writers) -> Iterator[DataServer]:
    served = DataServer(OneSegment(segment), writers)
    served.start()
    yield served
    served.close()
    assert served.connections() == 0


@pytest.fixture(params=["shm", "tcp", "shm-far", "tcp-far"])
def transport(request: pytest.FixtureRequest, segment: Segment) -> Iterator[Transport]:
    way: Transport
    kind, _, far = request.param.partition("-")
    copier = FarCopier()
    seam: Copier = copier if far else copy.HOST
    if kind == "shm":
        way = ShmTransport(Segment.open(segment.path), seam)
    else:
        server: DataServer = request.getfixturevalue("server")
        address = f"127.0.0.1:{server.port}"
        way = TcpTransport(address, "segment", "client", timeout_s=20.0, copier=seam)
    yield FarTransport(way) if far else way
    way.close()
    assert not copier.attached
    assert not copier.lent
