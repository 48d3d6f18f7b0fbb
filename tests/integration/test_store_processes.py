"""Stores in several processes on one pool: the plain verbs over shared memory and TCP."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from moonpool import (
    BufferTooSmallError,
    Lease,
    NoSpaceError,
    NotFoundError,
    Pieces,
    Store,
    ValueTooLargeError,
    pack,
)
from tests.integration.processes import Master, Node, environment, eventually, pool

MIB = 1 << 20
WAYS = [("shm",), ("tcp",), ("shm", "tcp")]


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Master]:
    with pool(tmp_path_factory.mktemp("pool")) as (started, _):
        yield started


@pytest.fixture(params=WAYS, ids="+".join)
def ways(request: pytest.FixtureRequest) -> tuple[str, ...]:
    found: tuple[str, ...] = request.param
    return found


@pytest.fixture
def store(master: Master, ways: tuple[str, ...]) -> Iterator[Store]:
    with Store.connect(master.address, transports=ways, name="test") as connected:
        connected.remove_all(force=True)
        yield connected


def in_another_process(master: Master, code: str, ways: tuple[str, ...]) -> str:
    """Run code that finds a connected ``store``; return what it prints."""
    head = f"from moonpool import *\nstore = Store.connect({master.address!r}, transports={ways!r})"
    done = subprocess.run(
        [sys.executable, "-c", f"{head}\n{code}\nstore.close()"],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment(),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def mapped_segments() -> int:
    return Path("/proc/self/maps").read_text().count(".seg")


def test_what_one_process_puts_another_gets(
    master: Master, store: Store, ways: tuple[str, ...]
) -> None:
    in_another_process(master, "assert store.put('greeting', b'hello' * 1000)", ways)
    assert store.get("greeting") == b"hello" * 1000
    assert store.put("answer", b"42")
    assert in_another_process(master, "print(store.get('answer'))", ways) == "b'42'"


@pytest.mark.parametrize("size", [1, 4096, 4097, MIB + 3, 5 * MIB])
def test_sizes(store: Store, size: int) -> None:
    value = np.random.default_rng(size).bytes(size)
    assert store.put("a", value)
    assert store.get("a") == value
    room = np.zeros(size + 7, np.uint8)
    assert store.get_into("a", room) == size
    assert room[:size].tobytes() == value
    assert not room[size:].any()
    with pytest.raises(BufferTooSmallError):
        store.get_into("a", bytearray(size - 1))


@pytest.mark.parametrize("key", ["k" * 200, "k" * 4096, pack(b"\0" * 16, b"n" * 16)])
def test_keys_of_any_length(store: Store, key: str) -> None:
    assert store.put(key, b"v" * 5000)
    assert store.get(key) == b"v" * 5000


def test_batches(store: Store) -> None:
    keys = [f"k{i}" for i in range(700)]
    values = [np.random.default_rng(i).bytes(1 + 37 * i) for i in range(700)]
    parents = [None, *keys[:-1]]
    assert store.put_batch(keys, values, parents=parents) == [0] * 700
    assert store.put_batch(keys, values) == [-705] * 700
    assert store.get_batch([*keys, "none"]) == [*values, None]
    assert store.stat("k5").parent == b"\0k4"


def test_zero_copy_from_and_to_scattered_memory(store: Store) -> None:
    objects, each, size = 64, 61, 61 * 4096 + 5
    rng = np.random.default_rng(3)
    source = np.frombuffer(rng.bytes(objects * size), np.uint8)
    target = np.zeros_like(source)
    store.register_buffer(source)
    store.register_buffer(target)
    lengths = np.full((objects, each), 4096, np.uint64)
    lengths[:, -1] += np.uint64(5)
    flat = lengths.ravel()
    offsets = np.cumsum(flat) - flat
    order = rng.permutation(objects * each)
    starts = np.arange(objects + 1, dtype=np.int64) * each
    keys = [pack(i.to_bytes(16, "big"), b"n" * 16) for i in range(objects)]
    out = Pieces(offsets[order] + np.uint64(source.ctypes.data), flat[order], starts)
    back = Pieces(offsets[order] + np.uint64(target.ctypes.data), flat[order], starts)
    assert not store.put_pieces(keys, out).any()
    assert not store.get_pieces(keys, back).any()
    assert np.array_equal(source, target)


def test_too_large_for_any_segment(store: Store) -> None:
    with pytest.raises(ValueTooLargeError):
        store.put("a", bytes(70 * MIB))
    assert store.put_batch(["a", "b"], [bytes(70 * MIB), b"x"]) == [-600, 0]


def test_a_full_pool_evicts_and_goes_on(store: Store) -> None:
    for i in range(160):
        assert store.put(f"k{i}", bytes([i]) * MIB)
    assert store.get("k159") == bytes([159]) * MIB
    with pytest.raises(NotFoundError):
        store.get("k0")
    assert store.status().counters["evicted_objects"] > 0


def fill_and_hold(store: Store) -> list[Lease]:
    """Put objects of 4 MiB under leases until no more fit."""
    store.remove_all(force=True)
    leases: list[Lease] = []
    while len(leases) < 40:
        try:
            store.put(f"k{len(leases)}", bytes(4 * MIB))
        except NoSpaceError:
            break
        leases.append(store.hold([f"k{len(leases)}"], 60.0))
    assert 14 <= len(leases) < 40
    return leases


def test_a_put_waits_for_leased_space_until_its_deadline(
    master: Master, ways: tuple[str, ...]
) -> None:
    with Store.connect(master.address, transports=ways, put_timeout_s=0.4) as store:
        leases = fill_and_hold(store)
        began = time.monotonic()
        assert store.put_batch(["more"], [bytes(4 * MIB)]) == [-200]
        assert 0.2 < time.monotonic() - began < 5.0
        assert store.exists_batch([f"k{i}" for i in range(len(leases))]) == [True] * len(leases)
        for lease in leases:
            store.release(lease)
        assert store.put("more", bytes(4 * MIB))


def test_a_put_goes_on_when_space_is_given_back_while_it_waits(
    master: Master, ways: tuple[str, ...]
) -> None:
    with (
        Store.connect(master.address, transports=ways, put_timeout_s=0.2) as other,
        Store.connect(master.address, transports=ways, put_timeout_s=30.0) as store,
    ):
        leases = fill_and_hold(other)
        timer = threading.Timer(0.3, other.release, (leases[0],))
        timer.start()
        began = time.monotonic()
        assert store.put("more", b"m" * (4 * MIB))
        assert time.monotonic() - began > 0.2
        timer.join()
        assert not store.exists("k0")
        for lease in leases:
            other.release(lease)


def test_many_threads_share_a_store(store: Store) -> None:
    failed: list[object] = []

    def work(thread: int) -> None:
        for i in range(25):
            value = f"{thread} {i}".encode() * 999
            key = f"t{thread}-{i}"
            if not store.put(key, value) or store.get(key) != value:
                failed.append(key)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert store.status().leases == 0


def test_a_closed_store_leaves_nothing_mapped(master: Master) -> None:
    before = mapped_segments()
    with Store.connect(master.address, transports=("shm",)) as store:
        store.put("a", b"x")
        store.get("a")
        assert mapped_segments() == before + 1
    assert mapped_segments() == before
    eventually("its threads are gone", lambda: "moonpool-attached" not in thread_names())


def test_a_forked_child_is_told_to_connect_by_itself(master: Master) -> None:
    code = """
import os
store.put("a", b"x")
pid = os.fork()
if pid == 0:
    try:
        store.get("a")
    except MasterUnreachableError as error:
        os._exit(7 if "another process" in str(error) else 1)
    os._exit(2)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
print(store.get("a"))
"""
    assert in_another_process(master, code, ("shm",)) == "b'x'"


def thread_names() -> set[str]:
    return {thread.name for thread in threading.enumerate()}


def test_a_store_does_not_keep_the_memory_of_a_node_that_left(tmp_path: Path) -> None:
    before = mapped_segments()
    with (
        pool(tmp_path) as (master, (node,)),
        Store.connect(master.address, transports=("shm",)) as store,
    ):
        store.put("a", b"x")
        assert mapped_segments() == before + 1
        assert node.end() == 0
        eventually("the mapping is gone", lambda: mapped_segments() == before)
        assert not store.exists("a")
        with pytest.raises(NotFoundError):
            store.get("a")


def test_segments_of_several_nodes_are_all_used(tmp_path: Path) -> None:
    with (
        pool(tmp_path, nodes=3, size="32MB") as (master, _),
        Store.connect(master.address) as store,
    ):
        keys = [f"k{i}" for i in range(60)]
        assert store.put_batch(keys, [bytes([i]) * MIB for i in range(60)]) == [0] * 60
        assert all(segment.objects > 10 for segment in store.status().segments)
        assert store.get_batch(keys) == [bytes([i]) * MIB for i in range(60)]


def test_a_segment_that_is_not_on_this_host_is_reached_over_tcp(tmp_path: Path) -> None:
    with pool(tmp_path) as (master, (node,)), Store.connect(master.address) as store:
        before = mapped_segments()
        hide(node)
        store.put("a", b"x" * 100_000)
        assert store.get("a") == b"x" * 100_000
        assert mapped_segments() == before


def hide(node: Node) -> None:
    """Move the segment files, as if this process could not see them."""
    node.segment_dir.rename(node.segment_dir.with_name(f"{node.segment_dir.name}-hidden"))
    node.keys["segment_dir"] = f"{node.segment_dir}-hidden"
