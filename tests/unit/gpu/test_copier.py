"""Bytes between a GPU's memory and the host's: pinned, not pinned, partly pinned."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import xxhash

from moonpool.gpu import copier as module
from moonpool.gpu.base import GpuError
from moonpool.gpu.copier import CudaCopier
from moonpool.transport import copy, streams
from moonpool.transport.base import Pieces

from .fake import FakeDriver
from .support import CHUNK, STAGING, Host, Scattered

KIB = 1024
SHAPES = {
    "none": ([], 1),
    "empty": ([0], 1),
    "one": ([4096], 4096),
    "small": ([100, 0, 5000, 1], 64),
    "across chunks": ([700 * KIB] * 5, 64 * KIB),
    "one piece across chunks": ([3000 * KIB], 3000 * KIB),
    "many": ([16 * KIB] * 150, 4 * KIB),
}
PINNED = {"all": 4 << 20, "none": 0, "half": CHUNK + 12_288}


@pytest.fixture(params=PINNED)
def host(request: pytest.FixtureRequest, copier: CudaCopier, driver: FakeDriver) -> Host:
    made = Host(4 << 20)
    if PINNED[request.param]:
        copier.attach(made.address, PINNED[request.param])
        assert copier.pinning.wait(60)
    return made


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STEP_BYTES", 500 * KIB)
    monkeypatch.setattr(module, "MARK_BYTES", 60 * KIB)
    monkeypatch.setattr(module, "HASH_BYTES", 30 * KIB)
    monkeypatch.setattr(module, "STAGED_STEP_BYTES", 100 * KIB)


@pytest.mark.parametrize("shape", SHAPES)
def test_there_and_back(copier: CudaCopier, driver: FakeDriver, host: Host, shape: str) -> None:
    sizes, piece = SHAPES[shape]
    source = Scattered(driver, 1, sizes, piece)
    targets = host.places(sizes)
    sums = copier.gather(source.pieces, targets)
    assert sums.tolist() == [xxhash.xxh3_64_intdigest(payload) for payload in source.payloads()]
    rows = zip(targets.tolist(), sizes, strict=True)
    assert [host.payload(*row) for row in rows] == source.payloads()
    back = Scattered(driver, 2, sizes, piece)
    copier.scatter(targets, back.pieces)
    assert back.payloads() == source.payloads()


def test_pinned_memory_needs_no_staging(copier: CudaCopier, driver: FakeDriver) -> None:
    host = Host(4 << 20)
    copier.attach(host.address, host.nbytes)
    assert copier.pinning.wait(60)
    sizes = [64 * KIB] * 20
    source = Scattered(driver, 1, sizes, 16 * KIB)
    copier.gather(source.pieces, host.places(sizes))
    copier.scatter(host.places(sizes), source.pieces)
    assert driver.calls["host_alloc"] == 0
    assert {host.address <= at < host.address + host.nbytes for at, _ in driver.copied} == {True}


def test_neighbours_are_one_copy(copier: CudaCopier, driver: FakeDriver) -> None:
    host = Host(4 << 20)
    copier.attach(host.address, host.nbytes)
    assert copier.pinning.wait(60)
    sizes = [64 * KIB] * 4
    source = Scattered(driver, 1, sizes, 4 * KIB, shuffle=False)
    copier.scatter(host.places(sizes, gap=0), source.pieces)
    assert driver.copied == [(host.address, 256 * KIB)]
    driver.copied.clear()
    copier.scatter(host.places(sizes, first=CHUNK - 100 * KIB, gap=0), source.pieces)
    assert [size for _, size in driver.copied] == [100 * KIB, 156 * KIB]


def test_pieces_that_do_not_start_at_the_first(copier: CudaCopier, driver: FakeDriver) -> None:
    source = Scattered(driver, 1, [5000] * 6, 700)
    few = Pieces(source.pieces.addresses, source.pieces.lengths, source.pieces.starts[2:5])
    host = Host(1 << 20)
    copier.gather(few, host.places([5000, 5000]))
    found = [host.payload(at, 5000) for at in host.places([5000, 5000]).tolist()]
    assert found == source.payloads()[2:4]


@pytest.mark.parametrize("verb", ["gather", "scatter"])
@pytest.mark.parametrize("call", ["copy_batch", "event_record", "event_synchronize"])
def test_a_driver_that_fails(
    copier: CudaCopier, driver: FakeDriver, host: Host, call: str, verb: str
) -> None:
    sizes = [100 * KIB] * 12
    source = Scattered(driver, 1, sizes, 10 * KIB)
    targets = host.places(sizes)
    driver.fail[call] = 1
    arguments: tuple[Any, Any] = (source.pieces, targets)
    with pytest.raises(GpuError, match=call):
        getattr(copier, verb)(*(arguments if verb == "gather" else arguments[::-1]))
    copier.gather(source.pieces, targets)
    assert [host.payload(at, 100 * KIB) for at in targets.tolist()] == source.payloads()


@pytest.mark.parametrize("call", ["host_alloc", "host_register"])
def test_no_pinned_memory_to_be_had(driver: FakeDriver, call: str) -> None:
    driver.fail[call] = 100
    copier = CudaCopier(driver, staging_bytes=STAGING, pin_chunk_bytes=CHUNK)
    host = Host(4 << 20)
    copier.attach(host.address, host.nbytes if call == "host_register" else CHUNK)
    assert copier.pinning.wait(60)
    sizes = [100 * KIB] * 30
    source = Scattered(driver, 1, sizes, 10 * KIB)
    sums = copier.gather(source.pieces, host.places(sizes))
    assert sums.tolist() == [xxhash.xxh3_64_intdigest(payload) for payload in source.payloads()]
    back = Scattered(driver, 2, sizes, 10 * KIB)
    copier.scatter(host.places(sizes), back.pieces)
    assert back.payloads() == source.payloads()
    copier.close()
    assert driver.registered == {}


def test_what_was_queued_has_ended_when_a_call_fails(driver: FakeDriver) -> None:
    """Otherwise it would land in memory that somebody else has got meanwhile."""
    copier = CudaCopier(driver, staging_bytes=STAGING)
    host = Host(4 << 20)
    copier.attach(host.address, host.nbytes)
    assert copier.pinning.wait(60)
    sizes = [100 * KIB] * 8
    source = Scattered(driver, 1, sizes, 100 * KIB)
    targets = host.places(sizes)

    def refuse(*_: object, **__: object) -> None:
        if len(driver.copied) >= 4:
            raise GpuError("no more")
        real(*_, **__)  # type: ignore[arg-type]

    real = driver.copy_batch
    driver.copy_batch = refuse  # type: ignore[method-assign]
    with pytest.raises(GpuError, match="no more"):
        copier.gather(source.pieces, targets)
    assert host.payload(int(targets[0]), 100 * KIB) == source.payloads()[0]
    host.view[:] = 0
    copier.scatter(targets[:0], Scattered(driver, 1, [], 1).pieces)
    assert not host.view.any()
    copier.close()


def test_copies_wait_for_events(copier: CudaCopier, driver: FakeDriver) -> None:
    """The event's stream writes the memory; a copy that did not wait would find it as it was."""
    host = Host(1 << 20)
    source = Scattered(driver, 1, [5000] * 3, 700)
    fresh = np.frombuffer(np.random.default_rng(2).bytes(source.nbytes), np.uint8)
    engine, event = driver.stream_create(), driver.event_create(ipc=True)
    computed = threading.Event()

    def step() -> None:
        assert computed.wait(60)
        source.view[:] = fresh

    driver._streams[engine].put(step)
    driver.event_record(event, engine)
    targets = host.places([5000] * 3)
    with copier.after(event, timeout_s=0.01), pytest.raises(GpuError, match="fence"):
        copier.gather(source.pieces, targets)
    assert driver.copied == []
    with copier.after(event):
        computed.set()
        copier.gather(source.pieces, targets)
        asked = driver.calls["event_query"]
        copier.scatter(targets, source.pieces)
        assert driver.calls["event_query"] == asked  # once is enough
    assert (source.view == fresh).all()
    assert [host.payload(at, 5000) for at in targets.tolist()] == source.payloads()
    copier.gather(source.pieces, targets)
    assert driver.calls["event_query"] == asked


def test_other_threads_wait_too_if_they_belong_to_the_call(
    copier: CudaCopier, driver: FakeDriver
) -> None:
    host = Host(1 << 20)
    source = Scattered(driver, 1, [5000], 700)
    event = driver.event_create(ipc=True)
    driver._events[event].counts[0] = 1  # recorded, never to happen
    failed: list[str] = []

    def gather() -> None:
        try:
            copier.gather(source.pieces, host.places([5000]))
        except GpuError as error:
            failed.append(str(error))

    with copier.after(event, timeout_s=0.01):
        streams.run_all([gather, gather, gather])
    assert len(failed) == 3
    gather()
    assert len(failed) == 3


def test_many_calls_at_once(copier: CudaCopier, driver: FakeDriver, host: Host) -> None:
    sizes = [50 * KIB] * 3
    sources = [Scattered(driver, i, sizes, 10 * KIB) for i in range(20)]
    failed: list[BaseException] = []

    def both(i: int) -> None:
        try:
            targets = host.places(sizes, first=i * 160 * KIB)
            copier.gather(sources[i].pieces, targets)
            back = Scattered(driver, 100 + i, sizes, 7 * KIB)
            copier.scatter(targets, back.pieces)
            assert back.payloads() == sources[i].payloads()
        except BaseException as error:
            failed.append(error)
            raise

    threads = [threading.Thread(target=both, args=(i,)) for i in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []


def test_another_gpu_is_refused(driver: FakeDriver) -> None:
    with pytest.raises(GpuError):
        CudaCopier(driver, "GPU-other")
    CudaCopier(driver, driver.uuid()).close()


def test_host_memory_goes_the_host_s_way(copier: CudaCopier, driver: FakeDriver) -> None:
    """A store's plain verbs have buffers of their callers."""
    host = Host(1 << 20)
    pieces = copy.whole(host.places([5000] * 3), np.full(3, 5000, np.uint64))
    host.view[:20_000] = np.random.default_rng(1).integers(0, 256, 20_000)
    expected = [host.payload(at, 5000) for at in pieces.addresses.tolist()]
    away = host.places([5000] * 3, first=100_000)
    sums = copier.gather(pieces, away)
    assert sums.tolist() == [xxhash.xxh3_64_intdigest(payload) for payload in expected]
    host.view[:20_000] = 0
    copier.scatter(away, pieces)
    assert [host.payload(at, 5000) for at in pieces.addresses.tolist()] == expected
    assert driver.copied == []
