"""What fuzzing has found, each by its cause."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from moonpool import MoonpoolError, Store, config
from moonpool.client.local import LocalChannel
from moonpool.client.memory import taken
from moonpool.compat.arguments import setup_of
from moonpool.compat.codes import INVALID
from moonpool.compat.commands import master
from moonpool.config_ha import parse_store
from moonpool.core import messages as m
from moonpool.errors import (
    BufferTooSmallError,
    ConfigError,
    InvalidArgumentError,
    NotFoundError,
)
from moonpool.ha import etcd_wire, lease_wire
from moonpool.ha.backend import BackendError, unpack
from moonpool.ha.election import Record
from moonpool.master.http import HttpSession, Route
from moonpool.router.kubernetes import _port
from moonpool.router.members import named
from moonpool.transport import layout, small
from moonpool.transport.pool import parse_address
from moonpool.transport.segment import Segment
from moonpool.transport.shm import ShmTransport
from tests.unit.master.peers import Pipe
from tests.unit.transport.support import batch, places

MANY_DIGITS = "9" * 5000


class Said(LocalChannel):
    """A pool whose master says something else than it has, once something is ``told``."""

    told: m.Reply | None = None
    segments: m.Segments | None = None

    def ask(self, request: m.Request, timeout_s: float | None = None) -> tuple[m.Reply, int]:
        """Return what it says instead for a Get or a PutStart."""
        reply, epoch = super().ask(request, timeout_s)
        if self.segments is not None and isinstance(request, m.GetSegments):
            return self.segments, epoch
        if self.told is not None and isinstance(request, m.Get | m.PutStart):
            return self.told, epoch
        return reply, epoch


@pytest.fixture
def said() -> Iterator[tuple[Said, Store]]:
    channel = Said(Segment.anonymous(1 << 20))
    with Store(channel, channel.opener, put_timeout_s=0.0, lease_s=5.0) as store:
        assert store.put("key", b"value")
        yield channel, store


def located(**changed: int) -> m.Located:
    sound: dict[str, Any] = {"size": 5, "checksum": 0, "generation": 5} | changed
    return m.Located(**sound, slots=[m.Slot(1, 0, changed.get("offset", 0))])


@pytest.mark.parametrize("text", [MANY_DIGITS + "KB", MANY_DIGITS])
def test_a_size_beyond_all_numbers_is_no_size(text: str) -> None:
    with pytest.raises(ConfigError, match="size"):
        config.load(config.NodeConfig, flags={"size": text}, env={})


@pytest.mark.parametrize("value", [1, 0, None, [], 1.0])
def test_a_number_is_no_truth_value(value: object, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"node": {"touch_ahead": value}}))
    with pytest.raises(ConfigError, match="touch_ahead"):
        config.load(config.NodeConfig, file=path, env={})


def test_a_flag_of_more_than_64_bits_is_refused() -> None:
    with pytest.raises(ConfigError, match="client_ttl"):
        master.read([f"--client_ttl={'9' * 400}"])


def test_a_size_of_many_digits_is_no_size_for_setup() -> None:
    config = {"local_hostname": "h", "metadata_server": "P2PHANDSHAKE"}
    assert setup_of([{**config, "global_segment_size": MANY_DIGITS}], {}) == INVALID


def test_a_bootstrap_port_of_many_digits_is_no_port() -> None:
    with pytest.raises(ConfigError, match="no port"):
        named("http://10.0.0.1:8000", "prefill", MANY_DIGITS)


@pytest.mark.parametrize("port", [MANY_DIGITS, "0" * 5000 + "1", "²"])
def test_a_nodes_port_of_many_digits_is_no_address(port: str) -> None:
    with pytest.raises(InvalidArgumentError, match="host:port"):
        parse_address(f"10.0.0.1:{port}")


def test_a_port_of_superscript_digits_is_none() -> None:
    assert _port([], "²") is None
    assert _port([], MANY_DIGITS) is None


async def test_a_content_length_of_many_digits_is_too_large() -> None:
    pipe = Pipe()

    def never(*_: object) -> None:
        raise AssertionError("it was served")

    session = HttpSession({"/page": Route(("PUT",), never)})  # type: ignore[arg-type]
    session.connection_made(pipe)
    session.data_received(b"PUT /page HTTP/1.1\r\nContent-Length: %b\r\n\r\n" % (b"9" * 5000))
    session.connection_lost(None)
    assert pipe.sent.startswith(b"HTTP/1.1 413 ")
    assert pipe.closed


@pytest.mark.parametrize("size", [-1, -(2**63), 2**32, 2**63, 2**64 - 1])
def test_a_size_that_no_segment_holds_costs_no_memory(said: tuple[Said, Store], size: int) -> None:
    channel, store = said
    channel.told = m.Got([located(size=size)])
    with pytest.raises(MoonpoolError):
        store.get("key")
    try:
        assert store.get_batch(["key"]) == [None]
    except MoonpoolError:
        assert size < 0
    channel.told = None
    assert store.get("key") == b"value"


@pytest.mark.parametrize("data_bytes", [-1, -(2**63)])
def test_segments_of_less_than_no_bytes_hold_nothing(
    said: tuple[Said, Store], data_bytes: int
) -> None:
    channel, store = said
    channel.segments = m.Segments([m.SegmentInfo("s", "n", "", "", "", data_bytes, 1, 1)])
    store._reach._largest = 0  # as before the first transfer
    assert store.get_batch(["key"]) == [None]
    with pytest.raises(NotFoundError):
        store.get("key")


def test_a_code_of_more_than_32_bits_is_no_code(said: tuple[Said, Store]) -> None:
    channel, store = said
    for code in (2**63, 2**64 - 1, 7, -(2**63)):
        channel.told = m.PutStarted([m.Grant(code, 0, 0, [])])
        with pytest.raises(MoonpoolError):
            store.put_batch(["new"], [b"x"])
    channel.told = None
    assert store.put_batch(["other"], [b"x"]) == [0]


def test_an_object_for_which_there_is_no_memory_is_a_typed_error() -> None:
    with pytest.raises(BufferTooSmallError, match="no memory"):
        taken(bytearray, 1 << 60)


@pytest.mark.parametrize("way", ["small batches", "large batches"])
def test_a_long_key_that_is_damaged_names_no_object(tmp_path: Path, way: str) -> None:
    path, count = tmp_path / "s.seg", 1 if way == "small batches" else small.OBJECTS_MAX + 1
    segment = Segment.create(path, layout.new_header("n", "s", layout.Geometry.holding(1 << 20)))
    names = [b"\0" + b"long" * 80 + b"%02d" % i for i in range(count)]
    source, where = batch(1, [5000] * count), places([5000] * count, 5)
    assert not ShmTransport(segment).write(where, source.pieces, names, []).codes.any()
    assert [each.key for each in segment.scan().found] == names
    at = int(where.offsets[0]) + 5000 + 100
    segment.data()[at] ^= np.uint8(1)
    scan = segment.scan(reset=True)
    assert [each.key for each in scan.found] == names[1:]
    assert scan.torn == 1
    assert segment.pick([0], [5]) == [None]
    segment.close()


@pytest.mark.parametrize("odd", ["é", {}, -(10**400), 1 << 31, None])
def test_a_lease_with_odd_transitions_is_written_over(odd: object) -> None:
    known = {"metadata": {"resourceVersion": "5"}, "spec": {"leaseTransitions": odd}}
    record = Record("h", "h:1", 5, 3.0, 0)
    lease = lease_wire.lease_of(
        parse_store("kubernetes://s/p"), record, "5", known, datetime.now(UTC)
    )
    assert 0 < lease["spec"]["leaseTransitions"] < 1 << 31


@pytest.mark.parametrize("text", ["1e400", "9" * 400, "-1", '"x"'])
def test_numbers_beyond_all_bounds_are_no_record_and_no_version(text: str) -> None:
    with pytest.raises(BackendError):
        unpack(f'{{"holder": "h", "address": "h:1", "epoch": 5, "lease_s": {text}}}')
    with pytest.raises(BackendError):
        etcd_wire.parse_range({"kvs": [{"mod_revision": float("inf"), "value": ""}]})
    with pytest.raises(BackendError):
        etcd_wire.parse_txn({"succeeded": True, "header": {"revision": float("inf")}})
