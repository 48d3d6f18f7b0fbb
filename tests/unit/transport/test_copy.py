"""Gather, scatter and hash agree with plain Python, compiled or not."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import xxhash

from moonpool.transport import copy, native
from moonpool.transport.base import U64, Pieces

from .support import Batch, Bytes, batch

WAYS = ["ctypes", "numba"]
SIZES = [0, 1, 5, 4096, 262_143, 262_144, 262_145, 700_000, 3_000_000, 9_000_000, 2]


@pytest.fixture(params=WAYS, autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    name: str = request.param
    if name == "numba" and copy.prepare() != "numba":
        pytest.skip("numba cannot be had")
    if name == "ctypes":
        monkeypatch.setattr(copy, "_kernels", copy.Kernels(never=True))
    assert copy.implementation() == name
    return name


def contiguous(sizes: list[int]) -> tuple[Bytes, U64]:
    """Return memory for the objects and the address of each."""
    memory = np.zeros(sum(sizes) + 1, np.uint8)
    addresses = np.zeros(len(sizes), np.uint64)
    np.cumsum(np.array(sizes[:-1], np.uint64), out=addresses[1:])
    return memory, addresses + np.uint64(memory.ctypes.data)


@pytest.mark.parametrize("stream_bytes", [0, 1 << 40])
@pytest.mark.parametrize("threads", [1, 2, 4])
def test_gather_and_scatter(
    threads: int, stream_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copy, "THREADS", threads)
    monkeypatch.setattr(copy, "_helpers", threading.BoundedSemaphore(3))
    monkeypatch.setattr(copy, "SPLIT_BYTES", 1 << 20)
    monkeypatch.setattr(copy, "STREAM_BYTES", stream_bytes)
    source = batch(11, SIZES, 30)
    memory, targets = contiguous(SIZES)
    sums = copy.gather(source.pieces, targets)
    assert memory[:-1].tobytes() == b"".join(source.payloads())
    assert sums.tolist() == [xxhash.xxh3_64_intdigest(p) for p in source.payloads()]
    assert copy.digest(source.pieces).tolist() == sums.tolist()
    assert copy.digest(copy.whole(targets, np.array(SIZES, np.uint64))).tolist() == sums.tolist()
    back = source.blank()
    copy.scatter(targets, back.pieces)
    assert back.payloads() == source.payloads()
    assert memory[-1] == 0


@pytest.mark.parametrize("seed", range(40))
def test_one_pass_over_pieces_of_any_length(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copy, "STREAM_BYTES", 0)
    rng = np.random.default_rng(seed)
    source: Bytes = rng.integers(0, 256, 300_000, dtype=np.uint8)
    counts = rng.integers(0, 9, 5)
    lengths = rng.choice([0, 1, 63, 64, 65, 240, 960, 1024, 1088, 4096, 9_999], counts.sum())
    offsets = rng.integers(0, 290_000, counts.sum())
    starts = np.zeros(6, np.int64)
    np.cumsum(counts, out=starts[1:])
    addresses = (offsets + source.ctypes.data).astype(np.uint64)
    pieces = Pieces(addresses, lengths.astype(np.uint64), starts)
    payloads = Batch(source, pieces).payloads()
    room = 128 * 1024
    memory = np.zeros(6 * room, np.uint8)
    base = (int(memory.ctypes.data) + room - 1) // room * room + (seed % 3 == 0)
    targets = np.uint64(base) + np.arange(5, dtype=np.uint64) * np.uint64(room)
    sums = copy.gather(pieces, targets)
    assert sums.tolist() == [xxhash.xxh3_64_intdigest(payload) for payload in payloads]
    at = base - int(memory.ctypes.data)
    for i, payload in enumerate(payloads):
        assert memory[at + i * room :][: len(payload)].tobytes() == payload
        assert not memory[at + i * room + len(payload) : at + (i + 1) * room].any()


def test_without_checksums() -> None:
    source = batch(11, SIZES, 30)
    memory, targets = contiguous(SIZES)
    sums = copy.HostCopier(checksums=False).gather(source.pieces, targets)
    assert memory[:-1].tobytes() == b"".join(source.payloads())
    assert not sums.any()


def test_a_thread_that_fails_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def part(first: int, last: int) -> None:
        if first:
            raise MemoryError

    monkeypatch.setattr(copy, "THREADS", 2)
    monkeypatch.setattr(copy, "_helpers", threading.BoundedSemaphore(1))
    with pytest.raises(MemoryError):
        copy._share(batch(11, SIZES).pieces, sum(SIZES), part)


def test_neighbours_are_joined_and_objects_are_not() -> None:
    memory = np.arange(100, dtype=np.uint8)
    base = int(memory.ctypes.data)
    addresses = np.array([base, base + 10, base + 30, base + 40, base + 50], np.uint64)
    lengths = np.array([10, 20, 10, 10, 0], np.uint64)
    starts = np.array([0, 0, 3, 5, 5], np.int64)
    joined = copy.coalesce(Pieces(addresses, lengths, starts))
    assert joined.lengths.tolist() == [40, 10]
    assert joined.starts.tolist() == [0, 0, 1, 2, 2]
    pieces = Batch(memory, Pieces(addresses, lengths, starts)).payloads()
    assert Batch(memory, joined).payloads() == pieces


def test_no_thread_to_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(copy, "THREADS", 2)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    source = batch(11, SIZES, 30)
    memory, targets = contiguous(SIZES)
    copy.gather(source.pieces, targets)
    assert memory[:-1].tobytes() == b"".join(source.payloads())


def test_without_the_c_symbols(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("xxh3_reset", "xxh3_update", "xxh3_digest", "_xxh3_whole"):
        monkeypatch.setattr(native, name, None)
    monkeypatch.setattr(copy, "_kernels", copy.Kernels(never=True))
    source = batch(3, SIZES)
    expected = [xxhash.xxh3_64_intdigest(p) for p in source.payloads()]
    assert copy.digest(source.pieces).tolist() == expected
    _memory, targets = contiguous(SIZES)
    assert copy.gather(source.pieces, targets).tolist() == expected
