"""What every transport must do, whichever way the bytes go."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import xxhash

from moonpool.transport import copy
from moonpool.transport.base import Transport
from moonpool.transport.layout import PAGE_BYTES
from moonpool.transport.segment import Segment

from .support import batch, changed, keys, places

SIZES = {
    "none": [],
    "one": [4096],
    "empty": [0],
    "few": [1, 4095, 4096, 4097, 65_536],
    "many": [4096] * 40,
    "odd": list(range(1, 90_001, 7_500)),
    "large": [3_000_000, 1, 5_000_000],
    "shared": [1_500_000] * 8,
}


@pytest.fixture(params=["ctypes", "numba"])
def copies(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "numba":
        if copy.prepare() != "numba":
            pytest.skip("numba cannot be had")
    else:
        monkeypatch.setattr(copy, "_kernels", copy.Kernels(never=True))


@pytest.mark.usefixtures("copies")
@pytest.mark.parametrize("shape", SIZES)
def test_round_trip(transport: Transport, shape: str) -> None:
    sizes = SIZES[shape]
    source = batch(1, sizes)
    where = places(sizes)
    written = transport.write(where, source.pieces, keys(len(sizes)), [])
    assert written.codes.tolist() == [0] * len(sizes)
    sums = [xxhash.xxh3_64_intdigest(payload) for payload in source.payloads()]
    assert written.checksums.tolist() == sums
    target = source.blank()
    codes = transport.read(changed(where, checksums=written.checksums), target.pieces)
    assert codes.tolist() == [0] * len(sizes)
    assert target.payloads() == source.payloads()


@pytest.mark.parametrize("count", [1, 20])
def test_another_generation_is_a_miss(transport: Transport, count: int) -> None:
    sizes = [5000] * count
    source = batch(2, sizes)
    where = places(sizes, 7)
    written = transport.write(where, source.pieces, keys(count), [])
    wrong = [g + (i == count - 1) for i, g in enumerate(where.generations.tolist())]
    codes = transport.read(
        changed(where, generations=wrong, checksums=written.checksums), source.blank().pieces
    )
    assert codes.tolist() == [0] * (count - 1) + [-704]


@pytest.mark.parametrize("count", [1, 20])
def test_a_place_that_was_never_written_is_a_miss(transport: Transport, count: int) -> None:
    sizes = [5000] * count
    codes = transport.read(places(sizes, 7), batch(2, sizes).pieces)
    assert codes.tolist() == [-704] * count


@pytest.mark.parametrize("count", [1, 20])
def test_a_late_writer_is_refused(transport: Transport, segment: Segment, count: int) -> None:
    sizes = [5000] * count
    newer, older = batch(3, sizes), batch(4, sizes)
    where = places(sizes, 1000)
    written = transport.write(where, newer.pieces, keys(count), [])
    late = transport.write(changed(places(sizes, 10)), older.pieces, keys(count), [])
    assert late.codes.tolist() == [-700] * count
    target = newer.blank()
    codes = transport.read(changed(where, checksums=written.checksums), target.pieces)
    assert not codes.any()
    assert target.payloads() == newer.payloads()
    assert len(segment.scan().found) == count


HOSTILE = [
    {"offsets": [2**64 - 4096]},
    {"offsets": [2**63]},
    {"offsets": [1]},
    {"offsets": [2**64 - 1]},
    {"capacities": [2**64 - 1]},
    {"capacities": [2**63]},
    {"capacities": [0]},
    {"capacities": [4095]},
    {"generations": [0]},
]


@pytest.mark.parametrize("count", [1, 20])
@pytest.mark.parametrize("change", HOSTILE)
def test_places_outside_are_refused(
    transport: Transport, segment: Segment, change: dict[str, list[int]], count: int
) -> None:
    sizes = [4096] * count
    good = places(sizes, 5)
    bad = changed(
        good,
        **{name: values + getattr(good, name).tolist()[1:] for name, values in change.items()},
    )
    written = transport.write(bad, batch(5, sizes).pieces, keys(count), [])
    assert written.codes.tolist() == [-600] + [0] * (count - 1)
    if "capacities" not in change:
        read = transport.read(changed(bad, checksums=written.checksums), batch(6, sizes).pieces)
        assert read.tolist() == [-600] + [0] * (count - 1)
    assert len(segment.scan().found) == count - 1


@pytest.mark.parametrize("index", [-1, 2**31, 2**62, -(2**63)])
def test_entries_outside_the_table_are_refused(
    transport: Transport, segment: Segment, index: int
) -> None:
    bad = changed(places([10]), indexes=np.array([index], np.int64))
    assert transport.write(bad, batch(1, [10]).pieces, keys(1), []).codes.tolist() == [-600]
    assert segment.scan().found == []


def test_the_end_of_the_segment(transport: Transport, segment: Segment) -> None:
    last = segment.geometry.data_bytes - PAGE_BYTES
    source = batch(1, [PAGE_BYTES])
    inside = places([PAGE_BYTES], 9, base=last)
    assert transport.write(inside, source.pieces, keys(1), []).codes.tolist() == [0]
    over = places([PAGE_BYTES + 1], 9, base=last)
    longer = batch(1, [PAGE_BYTES + 1])
    assert transport.write(over, longer.pieces, keys(1), []).codes.tolist() == [-600]
    assert transport.read(over, longer.pieces).tolist() == [-600]


@pytest.mark.parametrize("count", [1, 20])
def test_pieces_of_another_length_are_refused(transport: Transport, count: int) -> None:
    sizes = [5000] * count
    shorter = batch(1, [4999, *sizes[1:]])
    written = transport.write(places(sizes), shorter.pieces, keys(count), [])
    assert written.codes.tolist() == [-600] + [0] * (count - 1)
    read = transport.read(changed(places(sizes), checksums=written.checksums), shorter.pieces)
    assert read.tolist() == [-600] + [0] * (count - 1)


@pytest.mark.parametrize("count", [1, 20])
@pytest.mark.parametrize("length", [1, 112, 128, 129, 4097])
def test_keys_and_parents_are_kept(
    transport: Transport, segment: Segment, count: int, length: int
) -> None:
    sizes = [3000] * count
    where = places(sizes)
    names = keys(count, max(length, 5)) if length > 1 else [bytes([1 + i]) for i in range(count)]
    parents = [b"", *names[:-1]]
    rooms = [8192] * count
    where = changed(where, capacities=rooms, offsets=[8192 * i for i in range(count)])
    source = batch(1, sizes)
    assert not transport.write(where, source.pieces, names, parents).codes.any()
    found = sorted(segment.scan(verify=True).found, key=lambda f: f.index)
    assert [f.key for f in found] == names
    assert [f.parent for f in found] == [p if len(p) <= 64 else b"" for p in parents]
    assert [(f.size, f.capacity, f.offset) for f in found] == [
        (3000, 8192, 8192 * i) for i in range(count)
    ]


def test_a_long_key_needs_room(transport: Transport) -> None:
    where = places([4000])
    written = transport.write(where, batch(1, [4000]).pieces, [b"\0" + b"k" * 200], [])
    assert written.codes.tolist() == [-600]


def test_lists_of_the_wrong_length_are_refused(transport: Transport) -> None:
    sizes = [100, 100]
    pieces = batch(1, sizes).pieces
    assert transport.write(places(sizes), pieces, keys(1), []).codes.tolist() == [-600, -600]
    assert transport.write(places(sizes), pieces, keys(2), [b""]).codes.tolist() == [-600, -600]
    assert transport.read(places([100]), pieces).tolist() == [-600]


def test_many_threads_at_once(transport: Transport) -> None:
    sizes = [30_000] * 12

    def work(number: int) -> bool:
        source = batch(number, sizes)
        names = keys(len(sizes))
        at, index = number * 400 * 1024, number * len(sizes)
        for first in range(1, 500, 100):
            where = places(sizes, first + 1000 * number, base=at, index=index)
            written = transport.write(where, source.pieces, names, [])
            target = source.blank()
            read = transport.read(changed(where, checksums=written.checksums), target.pieces)
            if written.codes.any() or read.any() or target.payloads() != source.payloads():
                return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(8)))


@pytest.mark.parametrize("size", [20_000, 400_000])
def test_space_that_is_reused_during_reads_is_never_good(
    transport: Transport, segment: Segment, size: int
) -> None:
    """A writer goes round in one slot; a reader may miss, and never sees another's bytes."""
    source = batch(0, [size], 1)
    current = [0]

    def write(rounds: int) -> None:
        for generation in range(current[0] + 1, rounds):
            source.memory[:size] = generation % 251
            where = places([size], generation)
            assert not transport.write(where, source.pieces, keys(1), []).codes.any()
            current[0] = generation

    def read(rounds: int) -> int:
        good = 0
        for _ in range(rounds):
            generation = current[0]
            fill = bytes([generation % 251]) * size
            where = changed(
                places([size], generation),
                checksums=np.array([xxhash.xxh3_64_intdigest(fill)], np.uint64),
            )
            target = source.blank()
            code = int(transport.read(where, target.pieces)[0])
            assert code in (0, -704, -801)
            if code == 0:
                assert target.payloads()[0] == fill
                good += 1
        return good

    write(2)
    with ThreadPoolExecutor(2) as pool:
        writing = pool.submit(write, 300)
        reading = pool.submit(read, 300)
        writing.result()
        reading.result()


def test_a_closed_transport_says_so(transport: Transport) -> None:
    transport.close()
    for count in (1, 20):
        sizes = [100] * count
        pieces = batch(1, sizes).pieces
        assert transport.read(places(sizes), pieces).tolist() == [-800] * count
        assert transport.write(places(sizes), pieces, keys(count), []).codes.tolist() == (
            [-800] * count
        )
