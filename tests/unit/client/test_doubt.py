"""What a node has not compared yet is compared by who reads it, also if the node ends just then."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from moonpool.client.attachment import AttachedTransport
from moonpool.errors import ChecksumError
from moonpool.transport.base import I64, Pieces, Places
from moonpool.transport.layout import Geometry, doubt_of, new_header
from moonpool.transport.segment import Segment
from moonpool.transport.shm import ShmTransport
from tests.unit.transport.support import batch, keys, places

SIZES = [5000] * 3


def test_a_node_that_is_done_while_damaged_bytes_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    segment = Segment.create(tmp_path / "s.seg", new_header("n", "s", Geometry.holding(1 << 20)))
    shm = ShmTransport(segment)
    where = places(SIZES, 100)
    source = batch(1, SIZES)
    written = shm.write(where, source.pieces, keys(3), [])
    where = replace(where, checksums=written.checksums)
    segment.data()[int(where.offsets[1]) + 7] ^= 0xFF
    doubt = doubt_of(segment.path)
    doubt.touch()
    # As it is opened, but for the node that it would need.
    transport = AttachedTransport.__new__(AttachedTransport)
    vars(transport).update(lost=False, _verify=False, _doubt=doubt, _shm=shm)
    monkeypatch.setattr(transport, "_enter", lambda: None)
    monkeypatch.setattr(transport, "_leave", lambda: None)
    plain = shm.read

    def read_while_the_node_ends(which: Places, memory: Pieces) -> I64:
        codes = plain(which, memory)
        doubt.unlink(missing_ok=True)
        return codes

    monkeypatch.setattr(shm, "read", read_while_the_node_ends)
    codes = transport.read(where, source.blank().pieces)
    assert codes.tolist() == [0, ChecksumError.code, 0]
    # From then on the node's word counts.
    assert transport.read(where, source.blank().pieces).tolist() == [0, 0, 0]
    segment.close()
