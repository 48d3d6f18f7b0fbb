from __future__ import annotations

import array
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moonpool.client.memory import Registry, checked, parts, span_of, trimmed, whole
from moonpool.errors import (
    BufferAlreadyRegisteredError,
    BufferNotRegisteredError,
    InvalidArgumentError,
)
from moonpool.transport.base import Pieces


def pieces(*objects: list[tuple[int, int]]) -> Pieces:
    flat = [piece for each in objects for piece in each]
    starts = np.cumsum([0, *(len(each) for each in objects)])
    return Pieces(
        np.array([address for address, _ in flat], np.uint64),
        np.array([nbytes for _, nbytes in flat], np.uint64),
        starts.astype(np.int64),
    )


@pytest.mark.parametrize(
    "buffer",
    [b"abcd", bytearray(b"abcd"), memoryview(b"abcd"), array.array("i", [1]), np.ones((2, 2), "B")],
)
def test_any_contiguous_buffer_has_a_span(buffer: bytes) -> None:
    span = span_of(buffer)
    assert span.nbytes == 4
    assert span.address > 0


def test_a_span_is_where_the_bytes_are() -> None:
    values = np.arange(8, dtype=np.uint8)
    assert span_of(values[2:6]).address == values.ctypes.data + 2


@pytest.mark.parametrize("buffer", [b"", bytearray(), np.empty(0)])
def test_an_empty_buffer_is_an_empty_span(buffer: bytes) -> None:
    assert span_of(buffer).nbytes == 0


@pytest.mark.parametrize("buffer", ["text", 7, None, np.ones(8)[::2], memoryview(b"abcd")[::2]])
def test_what_is_no_contiguous_buffer_is_refused(buffer: bytes) -> None:
    with pytest.raises(InvalidArgumentError):
        span_of(buffer)


@pytest.mark.parametrize("buffer", [b"abc", b"", memoryview(b"abc")])
def test_reading_needs_writable_memory(buffer: bytes) -> None:
    with pytest.raises(InvalidArgumentError, match="read-only"):
        span_of(buffer, writable=True)


def test_buffers_become_objects_or_parts_of_one() -> None:
    spans = [span_of(b"ab"), span_of(b"cde")]
    assert whole(spans).sizes().tolist() == [2, 3]
    assert parts(spans).sizes().tolist() == [5]


@pytest.mark.parametrize(
    ("addresses", "lengths", "starts"),
    [
        ([1], [1, 2], [0, 1]),
        ([[1]], [[1]], [0, 1]),
        ([1], [1], []),
        ([1], [1], [0, 2]),
        ([1, 2], [1, 1], [0, 2, 1]),
        ([1], [1], [-1, 1]),
        (["a"], [1], [0, 1]),
        ([1], [1], [[0, 1]]),
    ],
)
def test_pieces_that_cannot_be_right_are_refused(
    addresses: list[object], lengths: list[object], starts: list[object]
) -> None:
    wrong = Pieces(np.array(addresses), np.array(lengths), np.array(starts, np.int64))
    with pytest.raises(InvalidArgumentError):
        checked(wrong)


@given(
    st.lists(st.lists(st.integers(0, 50), max_size=5), max_size=5),
    st.lists(st.integers(0, 300), min_size=5, max_size=5),
)
def test_trimming_keeps_the_first_bytes(objects: list[list[int]], wanted: list[int]) -> None:
    memory = pieces(*[[(1000 * i, n) for i, n in enumerate(each)] for each in objects])
    sizes = [min(want, sum(each)) for want, each in zip(wanted, objects, strict=False)]
    cut = trimmed(memory, np.array(sizes, np.uint64))
    assert cut.sizes().tolist() == sizes
    for i, each in enumerate(objects):
        kept = cut.lengths[cut.starts[i] : cut.starts[i + 1]].tolist()
        flat = [(p, b) for p, n in enumerate(each) for b in range(n)][: sizes[i]]
        assert kept == [sum(p == q for p, _ in flat) for q in range(len(each))]


def test_registration_refuses_overlap_and_changes_nothing() -> None:
    registry = Registry()
    registry.add(1000, 100)
    registry.add(1100, 100)
    registry.add(800, 200)
    for address, nbytes in [(1000, 100), (1099, 1), (700, 101), (500, 5000), (1199, 10)]:
        with pytest.raises(BufferAlreadyRegisteredError):
            registry.add(address, nbytes)
    assert len(registry) == 3
    registry.remove(1000)
    registry.add(1050, 50)


@pytest.mark.parametrize(("address", "nbytes"), [(0, 1), (1, 0), (-1, 5), (2**64 - 1, 2), (5, -1)])
def test_impossible_memory_cannot_be_registered(address: int, nbytes: int) -> None:
    with pytest.raises(InvalidArgumentError):
        Registry().add(address, nbytes)


@pytest.mark.parametrize("address", [0, 1001, -5, 2**70])
def test_only_what_is_registered_can_be_taken_back(address: int) -> None:
    registry = Registry()
    registry.add(1000, 100)
    with pytest.raises(BufferNotRegisteredError):
        registry.remove(address)


def test_read_only_memory_takes_puts_only() -> None:
    registry = Registry()
    registry.add(1000, 100, writable=False)
    registry.hold(pieces([(1000, 100)]), writable=False)
    with pytest.raises(InvalidArgumentError, match="read-only"):
        registry.hold(pieces([(1000, 100)]), writable=True)


ranges = st.lists(st.tuples(st.integers(1, 60), st.integers(1, 20)), max_size=6)
U64_MAX = 2**64 - 1


@given(ranges, st.tuples(st.integers(0, 100), st.one_of(st.integers(0, 40), st.just(U64_MAX))))
def test_a_piece_is_allowed_exactly_inside_one_range(
    buffers: list[tuple[int, int]], piece: tuple[int, int]
) -> None:
    registry = Registry()
    taken: list[tuple[int, int]] = []
    for address, nbytes in buffers:
        try:
            registry.add(address, nbytes)
        except BufferAlreadyRegisteredError:
            continue
        taken.append((address, nbytes))
    address, nbytes = piece
    inside = not nbytes or any(a <= address and address + nbytes <= a + n for a, n in taken)
    try:
        registry.hold(pieces([piece]), writable=True)
    except BufferNotRegisteredError:
        assert not inside
    else:
        assert inside


def test_registering_from_many_threads_loses_nothing() -> None:
    registry = Registry()

    def register(first: int) -> None:
        for i in range(50):
            registry.add(1 + 10 * (first + 8 * i), 10)

    threads = [threading.Thread(target=register, args=(first,)) for first in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(registry) == 400


def test_what_lies_in_registered_memory_is_told_for_one_range_and_for_many() -> None:
    registry = Registry()
    ranges = [(0, 1), (99, 2), (100, 0), (100, 50), (149, 1), (150, 1), (100, 51), (220, 5)]
    assert not any(registry.covers(*each) for each in ranges)
    registry.add(100, 50)
    registry.add(200, 20)
    wanted = [False, False, True, True, True, False, False, False]
    assert [registry.covers(*each) for each in ranges] == wanted
    addresses, lengths = np.array(ranges, np.uint64).T
    assert registry.inside(addresses, lengths).tolist() == wanted
    registry.remove(100)
    assert not registry.covers(100, 50)
    assert registry.covers(200, 20)
