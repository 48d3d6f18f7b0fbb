"""A segment and each way to it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from moonpool.node.server import DataServer
from moonpool.node.writers import Writers
from moonpool.transport import copy, layout
from moonpool.transport.base import Copier, Transport
from moonpool.transport.segment import Segment
from moonpool.transport.shm import ShmTransport
from moonpool.transport.tcp import TcpTransport

from .far import FarCopier, FarTransport
from .onesided_place import ONE_SIDED, Place, skip_without
from .onesided_place import OneSegment as OneSegment

DATA_BYTES = 16 * 1024 * 1024


@pytest.fixture(scope="session")
def places_by_kind(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Place]]:
    """Nodes and clients with one-sided engines, made when first asked for."""
    found = _Made(tmp_path_factory)
    yield found
    for place in found.values():
        place.close()


class _Made(dict[str, Place]):
    def __init__(self, factory: pytest.TempPathFactory) -> None:
        super().__init__()
        self._factory = factory

    def __missing__(self, kind: str) -> Place:
        self[kind] = place = Place(kind, self._factory.mktemp(kind), DATA_BYTES)
        return place


def _one_sided(request: pytest.FixtureRequest) -> str:
    """Return the one-sided kind that a test runs with, if it does."""
    call = getattr(request.node, "callspec", None)
    kind = str(call.params.get("transport", "") if call else "").partition("-")[0]
    return kind if kind in ONE_SIDED else ""


@pytest.fixture
def segment(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Segment]:
    kind = _one_sided(request)
    if kind:
        skip_without(kind)
        place: Place = request.getfixturevalue("places_by_kind")[kind]
        place.clear()
        yield place.segment
        return
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


@pytest.fixture(params=["shm", "tcp", "nixl", "mooncake", "shm-far", "tcp-far", "nixl-far"])
def transport(request: pytest.FixtureRequest, segment: Segment) -> Iterator[Transport]:
    way: Transport
    kind, _, far = request.param.partition("-")
    copier = FarCopier()
    seam: Copier = copier if far else copy.HOST
    if kind in ONE_SIDED:
        way = request.getfixturevalue("places_by_kind")[kind].transport(seam)
    elif kind == "shm":
        way = ShmTransport(Segment.open(segment.path), seam)
    else:
        server: DataServer = request.getfixturevalue("server")
        address = f"127.0.0.1:{server.port}"
        way = TcpTransport(address, "segment", "client", timeout_s=20.0, copier=seam)
    yield FarTransport(way) if far else way
    way.close()
    assert not copier.attached
    assert not copier.lent
