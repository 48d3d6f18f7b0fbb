"""What an engine can do to a batch: not end, fail, lie, or die; and what is left of it then."""

from __future__ import annotations

import mmap
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash

from moonpool.client import ways
from moonpool.client.ways import Ways
from moonpool.core.messages import SegmentInfo
from moonpool.errors import DeadlineError, TransferError
from moonpool.protocol import data
from moonpool.transport import copy
from moonpool.transport.base import Copier, Pieces, Places
from moonpool.transport.layout import PAGE_BYTES
from moonpool.transport.onesided import OneSidedTransport
from moonpool.transport.onesided_carrier import Carrier
from moonpool.transport.onesided_engine import Region, Setup
from moonpool.transport.onesided_gpu import CARRIER, GpuMemory
from moonpool.transport.onesided_link import Links, StillOpeningError
from moonpool.transport.onesided_staging import WINDOWS, Staging
from moonpool.transport.pool import open_data
from moonpool.transport.tcp import TcpTransport

from .onesided_place import Place
from .support import Batch, batch, changed, keys, places

MODULE = "tests.unit.transport.fake_carrier"
KIND = "nixl"
DATA_BYTES = 16 << 20


class FakePlace(Place):
    """A place whose engines obey files: ``at_node`` and ``at_client``."""

    def __init__(self, directory: Path) -> None:
        self.at_node, self.at_client = directory / "node", directory / "client"
        for each in (self.at_node, self.at_client):
            each.write_text("")
        super().__init__(KIND, directory, DATA_BYTES, environment={"PYTHONPATH": str(Path.cwd())})
        self.links.options.engine["control"] = [str(self.at_client)]

    def client(self, name: str, copier: Copier = copy.HOST, timeout_s: float = 1.0) -> Links:
        links = super().client(name, timeout_s=timeout_s)
        links._start = partial(Carrier, module=MODULE)
        links.options.engine["control"] = [str(self.at_client)]
        return links

    def transport(self, copier: Copier = copy.HOST) -> OneSidedTransport:
        return self.links.transport(self.address, "segment")

    def _start(self, kind: str, regions: list[Region], on_end: Callable[[], None]) -> Carrier:
        options = {"control": [str(self.at_node)]}
        setup = Setup(kind, "node", "127.0.0.1", regions, options)
        return Carrier(setup, self.environment, on_end=on_end, module=MODULE)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[FakePlace]:
    made = FakePlace(tmp_path)
    threads = threading.active_count()
    yield made
    made.close()
    eventually(lambda: threading.active_count() <= threads)


def eventually(check: Callable[[], object], within_s: float = 20.0) -> None:
    deadline = time.monotonic() + within_s
    while not check():
        assert time.monotonic() < deadline
        threading.Event().wait(0.01)


def stored(place: FakePlace, sizes: list[int], generation: int = 1) -> tuple[Batch, Places]:
    source, where = batch(1, sizes), places(sizes, generation)
    written = place.transport().write(where, source.pieces, keys(len(sizes)), [])
    assert not written.codes.any()
    return source, changed(where, checksums=written.checksums)


SIZES = [50_000] * 6


def test_a_read_that_does_not_end(place: FakePlace) -> None:
    source, where = stored(place, SIZES)
    way, target = place.transport(), source.blank()
    place.at_client.write_text("stuck")
    begun = time.monotonic()
    assert way.read(where, target.pieces).tolist() == [-800] * 6
    assert time.monotonic() - begun < 10
    place.at_client.write_text("")
    # The bytes arrive now, in the window that was kept back; nothing of the caller's changes.
    assert way.read(where, source.blank().pieces).tolist() == [0] * 6
    assert not target.memory.any()
    staging = place.links._staging
    assert staging is not None
    eventually(lambda: len(staging._idle) == WINDOWS)


def test_when_every_window_is_held_the_carrier_ends(place: FakePlace) -> None:
    source, where = stored(place, SIZES)
    way = place.transport()
    first = way.link.carrier
    place.at_client.write_text("stuck")
    for _ in range(WINDOWS):
        assert way.read(where, source.blank().pieces).tolist() == [-800] * 6
    eventually(first.ended.is_set)
    eventually(lambda: way.lost)
    place.at_client.write_text("")
    again = place.transport()
    assert again.link.carrier.pid != first.pid
    assert again.read(where, source.blank().pieces).tolist() == [0] * 6


@pytest.mark.parametrize("order", ["fail", "crash"])
def test_a_read_that_fails(place: FakePlace, order: str) -> None:
    source, where = stored(place, SIZES)
    way = place.transport()
    place.at_client.write_text(order)
    assert way.read(where, source.blank().pieces).tolist() == [-800] * 6
    place.at_client.write_text("")
    assert place.transport().read(where, source.blank().pieces).tolist() == [0] * 6


def test_bytes_that_change_on_the_way_to_the_client(place: FakePlace) -> None:
    source, where = stored(place, SIZES)
    target = source.blank()
    place.at_client.write_text("flip")
    codes = place.transport().read(where, target.pieces)
    # Of the owners, too, a bit was changed.
    assert set(codes.tolist()) <= {-704, -801}
    assert not target.memory.any()


def test_bytes_that_change_on_the_way_to_the_node(place: FakePlace) -> None:
    way = place.transport()
    place.at_node.write_text("flip")
    written = way.write(places(SIZES), batch(1, SIZES).pieces, keys(6), [])
    assert written.codes.tolist() == [-801] * 6
    assert place.segment.scan().found == []


@pytest.mark.parametrize("order", ["fail", "crash"])
def test_a_fetch_of_the_node_that_fails(place: FakePlace, order: str) -> None:
    way = place.transport()
    place.at_node.write_text(order)
    written = way.write(places(SIZES), batch(1, SIZES).pieces, keys(6), [])
    assert written.codes.tolist() == [-800] * 6
    assert place.segment.scan().found == []
    place.at_node.write_text("")
    if order == "crash":
        eventually(lambda: way.lost)

    def works() -> bool:
        try:
            stored(place, SIZES, 100)
        except TransferError:  # the node waits before it starts another carrier
            place.links._failed.clear()
            return False
        return True

    eventually(works)


def test_pages_are_kept_until_the_nodes_engine_cannot_write(place: FakePlace) -> None:
    """The client goes away in the middle of a fetch that does not end. WriterGone must not be
    said before the process that may still write has ended."""
    way = place.transport()
    carrier = place.node._lives[KIND].carrier
    gone: list[bool] = []
    place.writers.on_gone = lambda _client, _generation: gone.append(carrier.ended.is_set())
    place.at_node.write_text("stuck")
    begun = threading.Event()
    codes: list[list[int]] = []

    def write() -> None:
        begun.set()
        written = way.write(places(SIZES, 5), batch(1, SIZES).pieces, keys(6), [])
        codes.append(written.codes.tolist())

    writer = threading.Thread(target=write)
    writer.start()
    eventually(lambda: place.writers.snapshot())
    place.writers.fence("client", 1000)
    eventually(lambda: gone)
    writer.join()
    assert gone == [True]
    assert codes == [[-800] * 6]
    place.at_node.write_text("")
    assert place.segment.scan().found == []
    assert not place.segment.data().any()


def test_a_fence_counts(place: FakePlace) -> None:
    way = place.transport()
    place.writers.fence("client", 2)
    written = way.write(places([5000] * 3, 1), batch(1, [5000] * 3).pieces, keys(3), [])
    assert written.codes.tolist() == [-700, -700, 0]


def test_objects_larger_than_a_window_go_over_tcp(place: FakePlace) -> None:
    place.links.options = type(place.links.options)(
        KIND, place.links.options.engine, place.environment, WINDOWS * 64 * 1024, "127.0.0.1"
    )
    sizes = [200_000, 5000, 70_000]
    source, where = stored(place, sizes)
    place.at_client.write_text("fail")
    codes = place.transport().read(where, source.blank().pieces)
    assert codes.tolist() == [0, -800, 0]


# --- memory of a GPU, which a file stands for ----------------------------------------------------


def start_fake(*arguments: Any, module: str = "", **more: Any) -> Carrier:
    assert module == CARRIER
    return Carrier(*arguments, module=MODULE, **more)


def test_a_gpus_memory_is_reached_without_staging(place: FakePlace, tmp_path: Path) -> None:
    nbytes, sizes, shift = 1 << 20, [50_000] * 6, 4096
    file = tmp_path / "gpu"
    file.write_bytes(bytes(nbytes + shift))
    with file.open("r+b") as opened:
        memory = np.frombuffer(mmap.mmap(opened.fileno(), 0), np.uint8)
    source = batch(1, sizes)
    base = int(memory.ctypes.data) + shift
    size = len(source.memory)
    memory[shift : shift + size] = source.memory

    def moved(by: int) -> Pieces:
        old = np.uint64(source.memory.ctypes.data)
        at = source.pieces.addresses - old + np.uint64(base + by)
        return Pieces(at, source.pieces.lengths, source.pieces.starts)

    known = GpuMemory(base, nbytes, str(file).encode(), shift, 3)
    place.links.options = replace(place.links.options, gpu=(known,))
    place.links._start = start_fake
    way = place.transport()
    where = places(sizes)
    written = way.write(where, moved(0), keys(6), [])
    assert not written.codes.any()
    sums = [xxhash.xxh3_64_intdigest(payload) for payload in source.payloads()]
    assert written.checksums.tolist() == sums
    generations = [g + (i == 2) for i, g in enumerate(where.generations.tolist())]
    codes = way.read(changed(where, generations=generations), moved(400_000))
    assert codes.tolist() == [0, 0, -704, 0, 0, 0]
    assert not way.read(where, moved(400_000)).any()
    target = source.blank()
    target.memory[:] = memory[shift + 400_000 : shift + 400_000 + size]
    assert target.payloads() == source.payloads()
    # Other memory of the same process goes through staging, and is checked.
    assert way.read(where, source.blank().pieces).tolist() == [-801] * 6


# --- what a hostile client may say ---------------------------------------------------------------


def ask(place: FakePlace, message: data.DataMessage) -> data.DataMessage | None:
    host, port = place.address.split(":")
    wire = open_data(host, int(port), "client", 5)
    wire.within(10)
    try:
        wire.send(message)
        raw = wire.receive()
    except TransferError:
        return None
    finally:
        wire.close()
    for kind in (data.OneSidedReady, data.WriteDone, data.Refused):
        try:
            return data.decode_reply(raw, kind)
        except Exception:  # noqa: BLE001
            continue
    return None


def words(*values: int) -> bytes:
    return np.array(values, np.uint64).tobytes()


def pull(**change: Any) -> data.PullBatch:
    fields: dict[str, Any] = {
        "kind": KIND,
        "segment": "segment",
        "indexes": words(0),
        "offsets": words(0),
        "sizes": words(100),
        "capacities": words(PAGE_BYTES),
        "generations": words(1),
        "keys": keys(1),
        "parents": [],
        "checksums": words(0),
        "sources": words(0),
    }
    return data.PullBatch(**(fields | change))


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"sources": words(2**64 - 1)}, -600),
        ({"sources": words(1 << 40)}, -600),
        ({"sizes": words(2**63)}, -600),
        ({"offsets": words(2**63)}, -600),
        ({"indexes": words(2**40)}, -600),
        ({"memory": 1}, None),
        ({"memory": -1}, None),
        ({"sources": words(0, 0)}, None),
        ({"lengths": words(60), "counts": words(1)}, -600),
        ({"lengths": words(60, 2**64 - 1), "counts": words(2), "sources": words(0, 0)}, -600),
        ({"lengths": words(100), "counts": words(0)}, None),
        ({"lengths": words(100), "counts": words(2**63)}, None),
        ({"keys": []}, None),
        ({"kind": "mooncake"}, None),
        ({"kind": "x" * 5000}, None),
        ({"segment": "other"}, None),
        ({"generations": words(2**64 - 1)}, -700),
        ({"checksums": words(1, 2)}, None),
        ({"checksums": words(1)}, -801),
    ],
)
def test_forged_batches(place: FakePlace, change: dict[str, object], code: int | None) -> None:
    way = place.transport()
    answer = ask(place, pull(**change))
    if code is None:
        assert not isinstance(answer, data.WriteDone)
    else:
        assert isinstance(answer, data.WriteDone)
        assert data.numbers(answer.codes).tolist() == [code]
    assert place.segment.scan().found == []
    assert place.server.connections() >= 1
    source = batch(3, [5000])
    assert not way.write(places([5000], 50), source.pieces, keys(1), []).codes.any()


@pytest.mark.parametrize(
    "message",
    [
        data.OpenOneSided(KIND, ["fake"], b"garbage", [data.OneSidedMemory(4096, 4096)]),
        data.OpenOneSided(KIND, ["other"], b"1", [data.OneSidedMemory(4096, 4096)]),
        data.OpenOneSided("none", ["fake"], b"1", [data.OneSidedMemory(4096, 4096)]),
        data.OpenOneSided(KIND, ["fake"], b"1", []),
        data.OpenOneSided(KIND, ["fake"], b"1", [data.OneSidedMemory(-1, 4096)]),
        data.OpenOneSided(KIND, ["fake"], b"999999999", [data.OneSidedMemory(4096, 8)]),
    ],
)
def test_a_way_that_cannot_be(place: FakePlace, message: data.OpenOneSided) -> None:
    answer = ask(place, message)
    assert isinstance(answer, data.OneSidedReady)
    assert answer.why
    assert not answer.segments
    assert not place.node._sessions


def test_numbers_that_are_out_of_range_are_refused(place: FakePlace) -> None:
    memory = data.OneSidedMemory(2**64 - 1, 2**64 - 1)
    answer = ask(place, data.OpenOneSided(KIND, ["fake"], b"1", [memory]))
    assert answer is None or not getattr(answer, "segments", [])
    stored(place, [100])


def test_a_read_only_peer_gets_no_way(place: FakePlace) -> None:
    place.server._token = "secret"
    with pytest.raises(TransferError, match="token"):
        place.transport()


def test_staging_is_bounded() -> None:
    staging = Staging(WINDOWS * PAGE_BYTES, copy.HOST)
    taken = [staging.take(1) for _ in range(WINDOWS)]
    assert len({w.address for w in taken}) == WINDOWS
    with pytest.raises(DeadlineError, match="in use"):
        staging.take(0.01)
    staging.give_back(taken.pop())
    staging.take(1)
    staging.close()
    with pytest.raises(TransferError):
        staging.take(1)
    staging.close()


@pytest.fixture
def slow(place: FakePlace) -> Iterator[tuple[Links, threading.Event]]:
    """A client whose engine starts when the event is set, like a library that hangs in import."""
    links, go_on = place.client("slow"), threading.Event()
    start = links._start

    def hang(*args: Any, **options: Any) -> Carrier:
        assert go_on.wait(60)
        return start(*args, **options)

    links._start = hang
    yield links, go_on
    go_on.set()
    links.close()


def test_an_engine_that_hangs_in_its_start_holds_nobody(
    place: FakePlace, slow: tuple[Links, threading.Event]
) -> None:
    links, go_on = slow
    with pytest.raises(StillOpeningError, match="not ready yet"):
        links.transport(place.address, "segment", 0.01)
    # Who comes later does not wait at all.
    began = time.monotonic()
    with pytest.raises(StillOpeningError):
        links.transport(place.address, "segment", 3600.0)
    assert time.monotonic() - began < 60
    assert not links.is_open(place.address)
    go_on.set()
    eventually(lambda: links.is_open(place.address))
    links.transport(place.address, "segment", 0.0).close()


def test_meanwhile_the_next_way_is_taken_and_left_when_the_engine_is_there(
    place: FakePlace, slow: tuple[Links, threading.Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ways, "ENGINE_WAIT_S", 0.01)
    links, go_on = slow
    made = Ways("slow", (KIND, "tcp"), 5.0)
    made._links[KIND] = links
    info = SegmentInfo("segment", "node", "host", place.address, "", 0, 0)
    first = made.open(info)
    assert isinstance(first, TcpTransport)
    assert not first.outdated()
    go_on.set()
    eventually(first.outdated)
    second = made.open(info)
    assert isinstance(second, OneSidedTransport)
    for each in (first, second):
        each.close()


def test_an_engine_that_starts_when_nobody_wants_it_any_more_is_ended(
    place: FakePlace, slow: tuple[Links, threading.Event]
) -> None:
    links, go_on = slow
    with pytest.raises(StillOpeningError):
        links.open(place.address, 0.01)
    links.close()
    go_on.set()
    eventually(lambda: not links._opening)
    eventually(lambda: links._carrier is None)


def test_an_engine_that_does_not_start_says_why() -> None:
    with pytest.raises(TransferError, match="no engine 'nothing'"):
        Carrier(Setup("nothing", "n", "h", []))
    with pytest.raises(TransferError, match="No such file"):
        Carrier(
            Setup(KIND, "n", "h", [Region(4096, "/nowhere/there")], {"control": ["/dev/null"]}),
            {"PYTHONPATH": str(Path.cwd())},
            module=MODULE,
        )
