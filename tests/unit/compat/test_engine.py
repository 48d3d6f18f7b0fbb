"""TransferEngine between two engines of a process; between processes see tests/integration."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moonpool.compat.commands.metadata_server import MetadataServer
from moonpool.compat.engine import TransferEngine, TransferNotify, TransferOpcode, registry
from moonpool.compat.engine import messages as m
from moonpool.compat.engine.registry import Registry
from moonpool.protocol.data import encode
from moonpool.transport.base import U64

PAGE = 4096
SIDES: dict[str, Any] = {}


def packed_u64(*numbers: int) -> bytes:
    return np.array(numbers, "<u8").tobytes()


class Side:
    """An engine with one registered buffer, guarded by bytes that nobody may change."""

    GUARD = 64

    def __init__(self, nbytes: int, fill: int) -> None:
        self.all = np.full(nbytes + 2 * self.GUARD, 0xAA, np.uint8)
        self.data = self.all[self.GUARD : -self.GUARD]
        self.data[:] = fill
        self.engine = TransferEngine()
        assert self.engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
        assert self.engine.register_memory(self.at, nbytes) == 0

    @property
    def at(self) -> int:
        return int(self.data.ctypes.data)

    @property
    def name(self) -> str:
        return f"127.0.0.1:{self.engine.get_rpc_port()}"

    def guarded(self) -> bool:
        both = self.all[: self.GUARD], self.all[-self.GUARD :]
        return all(bool((each == 0xAA).all()) for each in both)


@pytest.fixture
def pair() -> Iterator[tuple[Side, Side]]:
    a, b = Side(64 * PAGE, 1), Side(64 * PAGE, 2)
    yield a, b
    assert a.guarded()
    assert b.guarded()
    for side in (a, b):
        side.engine._stop()


def test_write_and_read(pair: tuple[Side, Side]) -> None:
    a, b = pair
    a.data[:10] = range(10)
    assert a.engine.transfer_sync_write(b.name, a.at, b.at + 100, 10) == 0
    assert b.data[100:110].tolist() == list(range(10))
    assert b.data[110] == 2
    assert a.engine.transfer_sync_read(b.name, a.at, b.at + 105, 5) == 0
    assert a.data[:6].tolist() == [5, 6, 7, 8, 9, 5]


def test_batches(pair: tuple[Side, Side]) -> None:
    a, b = pair
    a.data[:] = np.arange(len(a.data)) % 251
    offsets = [i * PAGE for i in range(64)]
    ours, theirs = [a.at + o for o in offsets], [b.at + o for o in reversed(offsets)]
    assert a.engine.batch_transfer_sync_write(b.name, ours, theirs, [PAGE] * 64) == 0
    expected = a.data.reshape(64, PAGE)[::-1]
    assert (b.data.reshape(64, PAGE) == expected).all()
    a.data[:] = 0
    number = a.engine.batch_transfer_async_read(b.name, ours, theirs, [PAGE] * 64)
    assert number > 0
    assert a.engine.get_batch_transfer_status([number]) == 0
    assert (a.data.reshape(64, PAGE)[::-1] == b.data.reshape(64, PAGE)).all()
    assert a.engine.get_batch_transfer_status([number]) == -1
    assert a.engine.get_batch_transfer_status([]) == 0
    assert a.engine.batch_transfer_sync_write(b.name, [], [], []) == 0
    assert a.engine.batch_transfer_sync_write(b.name, ours, theirs[:1], [PAGE] * 64) == -1
    opcode = TransferOpcode.Read
    assert a.engine.batch_transfer_sync(b.name, ours[:2], theirs[:2], [1, 1], opcode) == 0


def test_more_ranges_than_fit_into_a_message(pair: tuple[Side, Side]) -> None:
    a, b = pair
    count = 20_000
    ours, theirs = [a.at + i for i in range(count)], [b.at + i for i in range(count)]
    assert a.engine.batch_transfer_sync_write(b.name, ours, theirs, [1] * count) == 0
    assert (b.data[:count] == 1).all()
    assert b.data[count] == 2


def test_submitted_writes(pair: tuple[Side, Side]) -> None:
    a, b = pair
    number = a.engine.transfer_submit_write(b.name, a.at, b.at, 50)
    deadline = time.monotonic() + 30
    while (state := a.engine.transfer_check_status(number)) == 0 and time.monotonic() < deadline:
        time.sleep(0.001)
    assert state == 1
    assert a.engine.transfer_check_status(number) == -1


@pytest.mark.parametrize("opcode", list(TransferOpcode))
@pytest.mark.parametrize(
    ("ours", "theirs", "nbytes"),
    [
        (0, 64 * PAGE - 10, 20),
        (0, -1, 20),
        (0, 64 * PAGE, 1),
        (0, 1 << 40, 1),
        (64 * PAGE - 10, 0, 20),
        (-1, 0, 20),
        (0, 0, 64 * PAGE + 1),
        (0, 0, (1 << 64) - 1),
    ],
)
def test_nothing_is_moved_outside_a_registered_buffer(
    pair: tuple[Side, Side], opcode: TransferOpcode, ours: int, theirs: int, nbytes: int
) -> None:
    a, b = pair
    where = a.at + ours, b.at + theirs
    assert a.engine.transfer_sync(b.name, *where, nbytes, opcode) == -1
    # Of a batch nothing is moved if a part of it cannot be.
    assert (
        a.engine.batch_transfer_sync(
            b.name, [a.at, where[0]], [b.at, where[1]], [5, nbytes], opcode
        )
        == -1
    )
    assert (a.data == 1).all()
    assert (b.data == 2).all()
    assert a.engine.transfer_sync(b.name, a.at, b.at, 1, opcode) == 0


def test_a_transfer_of_nothing_succeeds(pair: tuple[Side, Side]) -> None:
    a, b = pair
    assert a.engine.transfer_sync_write(b.name, 0, 0, 0) == 0


def test_registration(pair: tuple[Side, Side]) -> None:
    a, b = pair
    engine = a.engine
    assert engine.register_memory(a.at, 10) == -7
    assert engine.register_memory(a.at + 100, 100) == -7
    assert engine.unregister_memory(a.at + 100) == -3
    assert engine.unregister_memory(a.at) == 0
    assert engine.unregister_memory(a.at) == -3
    assert engine.transfer_sync_write(b.name, a.at, b.at, 5) == -1
    halves = [a.at, a.at + PAGE]
    assert engine.batch_register_memory([*halves, a.at + 5], [PAGE, PAGE, 1]) == -7
    assert engine.batch_register_memory(halves, [PAGE, PAGE]) == 0
    assert b.engine.transfer_sync_write(a.name, b.at, a.at, PAGE) == 0
    # Two buffers side by side are not one.
    assert b.engine.transfer_sync_write(a.name, b.at, a.at, PAGE + 1) == -1
    assert engine.batch_register_memory(halves, [1]) == -1
    assert engine.batch_unregister_memory([*halves, 5]) == -3
    assert b.engine.transfer_sync_write(a.name, b.at, a.at, 1) == -1


def test_notifications_and_probes(pair: tuple[Side, Side]) -> None:
    a, b = pair
    note = TransferNotify("n1", "hello")
    assert a.engine.transfer_sync(b.name, a.at, b.at, 5, TransferOpcode.Write, note) == 0
    assert [(each.name, each.msg) for each in b.engine.get_notifies()] == [("n1", "hello")]
    assert b.engine.get_notifies() == []
    assert a.engine.send_probe(b.name) == 0
    assert a.engine.send_probe("127.0.0.1:1") == -102
    assert a.engine.get_first_buffer_address(b.name) == b.at
    assert a.engine.get_first_buffer_address("127.0.0.1:1") == 0
    for wrong in ("127.0.0.1:1", "", "no port", "a:b:c"):
        assert a.engine.transfer_sync_write(wrong, a.at, b.at, 5) == -1


def test_managed_buffers(pair: tuple[Side, Side]) -> None:
    a, b = pair
    address = a.engine.allocate_managed_buffer(PAGE)
    assert address > 0
    assert a.engine.write_bytes_to_buffer(address, b"hello", 5) == 0
    assert a.engine.read_bytes_from_buffer(address, 5) == b"hello"
    assert b.engine.transfer_sync_read(a.name, b.at, address, 5) == 0
    assert b.data[:5].tobytes() == b"hello"
    assert a.engine.write_bytes_to_buffer(address + PAGE - 2, b"hello", 5) == -1
    assert a.engine.write_bytes_to_buffer(address, b"hi", 5) == -1
    assert a.engine.read_bytes_from_buffer(address, PAGE + 1) == b""
    assert a.engine.allocate_managed_buffer(0) == 0
    assert a.engine.free_managed_buffer(address, PAGE) == 0
    assert a.engine.free_managed_buffer(address, PAGE) == -1
    assert b.engine.transfer_sync_read(a.name, b.at, address, 5) == -1


def test_before_initialize_nothing_works_and_nothing_crashes() -> None:
    engine = TransferEngine()
    assert engine.get_rpc_port() == 0
    assert engine.transfer_sync_write("127.0.0.1:5", 1, 1, 1) == -1
    assert engine.batch_transfer_async_read("127.0.0.1:5", [1], [1], [1]) == 0
    assert engine.send_probe("127.0.0.1:5") == -102
    assert engine.get_notifies() == []
    assert engine.initialize("127.0.0.1", "etcd://h:1", "tcp", "") == -1
    assert engine.initialize("203.0.113.9", "P2PHANDSHAKE", "tcp", "") == -1


def test_wrong_types_are_type_errors(pair: tuple[Side, Side]) -> None:
    a, b = pair
    for wrong in (("x", b.at, 5), (a.at, b.at, -5), (a.at, b.at, 1.5), (a.at, b.at)):
        with pytest.raises(TypeError, match="transfer_sync_write"):
            a.engine.transfer_sync_write(b.name, *wrong)
    with pytest.raises(TypeError):
        a.engine.transfer_sync(b.name, a.at, b.at, 5, 1)
    with pytest.raises(TypeError):
        a.engine.register_memory(buffer=1, capacity=1)


def test_names_through_a_metadata_server() -> None:
    server = MetadataServer("127.0.0.1", 0)
    server.start()
    url = f"http://127.0.0.1:{server.port}/metadata"
    a, b = TransferEngine(), TransferEngine()
    try:
        assert a.initialize("127.0.0.1:7001", url, "tcp", "") == 0
        assert b.initialize("127.0.0.1:7002", url, "tcp", "") == 0
        assert a.send_probe("127.0.0.1:7002") == 0
        assert a.send_probe("127.0.0.1:7003") == -102
        # A second engine of a name is refused; it would take the first one's transfers.
        assert TransferEngine().initialize("127.0.0.1:7002", url, "tcp", "") == -1
        b._stop()
        assert a.send_probe("127.0.0.1:7002") == -102
    finally:
        a._stop()
        server.close()
    assert TransferEngine().initialize("127.0.0.1:7001", url, "tcp", "") == -1


def test_a_pools_token_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOONPOOL_TOKEN", "secret")
    b = Side(PAGE, 2)
    friend = Side(PAGE, 1)
    monkeypatch.setenv("MOONPOOL_TOKEN", "")
    stranger = Side(PAGE, 1)
    assert stranger.engine.transfer_sync_write(b.name, stranger.at, b.at, 5) == -1
    assert (b.data == 2).all()
    assert friend.engine.transfer_sync_write(b.name, friend.at, b.at, 5) == 0
    for side in (b, friend, stranger):
        side.engine._stop()


def test_topology() -> None:
    engine = TransferEngine()
    for said in (engine.get_local_topology(), engine.get_local_topology("nonesuch_0")):
        table = json.loads(said)
        assert all(len(row) == 2 for row in table.values())
        assert any(name.startswith("cpu:") for name in table)


def ranges(*pairs: tuple[int, int]) -> tuple[U64, U64]:
    return (
        np.array([a for a, _ in pairs], np.uint64),
        np.array([n for _, n in pairs], np.uint64),
    )


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 200), st.integers(0, 60)), max_size=8),
    st.lists(st.tuples(st.integers(0, 300), st.integers(0, 300)), max_size=4),
)
def test_a_hold_is_given_exactly_for_ranges_inside_one_buffer(
    buffers: list[tuple[int, int]], asked: list[tuple[int, int]]
) -> None:
    known, model = Registry(), list[tuple[int, int]]()
    for address, nbytes in buffers:
        fits = address > 0 and nbytes > 0
        fits = fits and all(address + nbytes <= a or a + n <= address for a, n in model)
        assert known.add(address, nbytes) == fits
        model += [(address, nbytes)] if fits else []
    inside = [any(a <= at < a + n and at + b <= a + n for a, n in model) for at, b in asked]
    hold = known.hold(*ranges(*asked), lambda: None)
    assert (hold is not None) == all(inside)


def test_a_buffer_in_use_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "DRAIN_S", 0.05)
    known = Registry()
    known.add(100, 100)
    interrupted = threading.Event()
    hold = known.hold(*ranges((150, 10)), interrupted.set)
    assert hold is not None
    removing = threading.Thread(target=known.remove, args=(100,))
    removing.start()
    assert interrupted.wait(30)
    assert known.hold(*ranges((150, 10)), lambda: None) is None
    assert removing.is_alive()
    with hold:
        pass
    removing.join(30)
    assert not removing.is_alive()


JUNK = st.lists(
    st.binary(max_size=200)
    | st.sampled_from(
        [
            encode(m.Open(1)),
            encode(m.Write(packed_u64(0, 1 << 63), packed_u64(8, 8))),
            encode(m.Write(b"123", b"12345678")),
            encode(m.Read(packed_u64((1 << 64) - 1), packed_u64(5))),
            encode(m.Note("n" * 40_000, "t" * 40_000)),
            encode(m.Ask()),
        ]
    ),
    max_size=6,
)


@settings(deadline=None, max_examples=60)
@given(JUNK)
def test_whatever_a_peer_sends_nothing_is_written_and_the_next_peer_is_served(
    parts: list[bytes],
) -> None:
    side = SIDES.setdefault("fuzzed", Side(PAGE, 2))
    with socket.create_connection(("127.0.0.1", side.engine.get_rpc_port()), 10) as sock:
        sock.settimeout(10)
        with contextlib.suppress(OSError):
            for part in parts:
                sock.sendall(part)
            sock.shutdown(socket.SHUT_WR)
            while sock.recv(65_536):
                pass
    assert (side.data == 2).all()
    assert side.guarded()
    assert side.engine.send_probe(side.name) == 0
