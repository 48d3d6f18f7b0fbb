"""A node and a client that read each other's memory by a real engine, kept for many tests: their
processes take a second to start."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from moonpool.node.onesided import OneSided
from moonpool.node.server import DataServer
from moonpool.node.writers import Writers
from moonpool.protocol.data import AttachedSegment
from moonpool.transport import copy, layout
from moonpool.transport.base import Copier
from moonpool.transport.onesided import OneSidedTransport
from moonpool.transport.onesided_carrier import Carrier
from moonpool.transport.onesided_engine import EngineError, Region, Setup
from moonpool.transport.onesided_link import Links, Options
from moonpool.transport.segment import Segment

STAGING_BYTES = 32 * 1024 * 1024
ENVIRONMENT = {"UCX_MODULES": "^ib"}
ONE_SIDED = ("nixl", "mooncake")


class OneSegment:
    """A node's shelf with a single segment."""

    name = "node"
    host = "host"

    def __init__(self, segment: Segment) -> None:
        self._segment = segment

    def segment(self, name: str) -> Segment | None:
        return self._segment if name == self._segment.header.name else None

    def segments(self) -> list[Segment]:
        return [self._segment]

    def users_of(self, _name: str) -> str:
        return ""

    def attachable(self) -> list[AttachedSegment]:
        return [AttachedSegment("segment", self._segment.path, self._segment.header.epoch)]


def why_not(kind: str) -> str:
    """Return why an engine cannot be used here, empty if it can."""
    from moonpool.transport import mooncake, nixl

    try:
        if kind == "nixl":
            nixl.bindings()
        else:
            mooncake.engine_class()
    except EngineError as error:
        return str(error)
    return ""


class Place:
    """A segment, the node that serves it, and a client's links to it."""

    def __init__(
        self,
        kind: str,
        directory: Path,
        data_bytes: int,
        *,
        environment: dict[str, str] | None = None,
    ) -> None:
        header = layout.new_header("node", "segment", layout.Geometry.holding(data_bytes))
        self.kind = kind
        self.environment = environment or ENVIRONMENT
        self.segment = Segment.create(directory / "segment.seg", header)
        shelf = OneSegment(self.segment)
        self.writers = Writers()
        self.node = OneSided(shelf, (kind,), self._start)
        self.server = DataServer(shelf, self.writers, onesided=self.node)
        self.server.start()
        self.address = f"127.0.0.1:{self.server.port}"
        self.links = self.client("client")

    def client(self, name: str, copier: Copier = copy.HOST, timeout_s: float = 20.0) -> Links:
        """Return the links of another client."""
        options = Options(self.kind, {}, self.environment, STAGING_BYTES, "127.0.0.1")
        return Links(options, name, copier, timeout_s=timeout_s)

    def transport(self, copier: Copier = copy.HOST) -> OneSidedTransport:
        """Return a way to the segment."""
        link, staging = self.links.open(self.address)
        return OneSidedTransport(link, staging, "segment", timeout_s=20.0, copier=copier)

    def clear(self) -> None:
        """Make the segment as it was when it was new."""
        shape = self.segment.geometry
        memory = self.segment.parts().memory
        memory[shape.owners_offset : shape.data_offset] = 0

    def close(self) -> None:
        self.links.close()
        self.node.close()
        self.server.close()
        self.segment.unlink()
        self.segment.close()
        assert self.server.connections() == 0

    def _start(self, kind: str, regions: list[Region], on_end: Callable[[], None]) -> Carrier:
        setup = Setup(kind, "node", "127.0.0.1", regions)
        return Carrier(setup, self.environment, on_end=on_end)


def skip_without(kind: str) -> None:
    """Skip the test where the engine's wheel is not installed."""
    reason = why_not(kind)
    if reason:
        pytest.skip(reason)
