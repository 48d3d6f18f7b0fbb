"""A pool that is full: eviction, then waiting, then a typed error."""

import threading
import time

import numpy as np
import pytest

from moonpool import Store
from moonpool.errors import NoSpaceError, ValueTooLargeError
from moonpool.transport.base import Pieces
from tests.adversarial.conftest import MakeCluster
from tests.adversarial.harness import Cluster, eventually
from tests.adversarial.values import MIB, value_of

VALUE = value_of("full", 0, MIB - 4096)


@pytest.fixture
def full(shared: Cluster) -> Store:
    """Return a store that waits a second for space, on an empty pool."""
    store = shared.connect(put_timeout_s=1.0)
    store.remove_all(force=True)
    return store


def lease_all(store: Store, ttl_s: float) -> tuple[list[str], int]:
    """Fill the pool, and hold all of it; return the keys and the lease's id."""
    lease, keys = 0, [f"full-{i}" for i in range(40)]
    held: list[str] = []
    for key in keys:
        try:
            store.put(key, VALUE)
        except NoSpaceError:
            break
        held.append(key)
        got = store.hold([key], ttl_s)
        while not got.count:  # above the high watermark it may have gone before it was held
            store.put(key, VALUE)
            got = store.hold([key], ttl_s)
        lease = got.id
    assert 20 < len(held) < 40
    return held, lease


def counts(store: Store) -> tuple[int, int, int, int]:
    """Return objects, puts in progress, bytes used and bytes pending."""
    status = store.status()
    return (
        status.objects,
        status.puts_in_progress,
        sum(s.used_bytes for s in status.segments),
        sum(s.pending_bytes for s in status.segments),
    )


def test_put_waits_and_then_says_no_space_and_leaves_nothing(full: Store) -> None:
    held, _ = lease_all(full, 60.0)
    before = counts(full)
    start = time.monotonic()
    with pytest.raises(NoSpaceError):
        full.put("one more", VALUE)
    assert 0.8 <= time.monotonic() - start <= 10.0
    start = time.monotonic()
    codes = list(full.put_batch([f"more-{i}" for i in range(50)], [VALUE] * 50))
    assert codes == [-200] * 50
    assert time.monotonic() - start <= 20.0, "a batch waits once, not for each object"
    memory = np.frombuffer(bytearray(VALUE), np.uint8)
    full.register_buffer(memory)
    pieces = Pieces(
        np.array([memory.ctypes.data], np.uint64),
        np.array([len(VALUE)], np.uint64),
        np.array([0, 1], np.int64),
    )
    start = time.monotonic()
    assert full.put_pieces(["pieces"], pieces, timeout_s=0.2).tolist() == [-200]
    assert time.monotonic() - start < 1.0
    assert counts(full) == before
    assert all(full.exists_batch(held))
    full.remove_all(force=True)


@pytest.mark.parametrize("how", ["release", "expire", "remove"])
def test_put_goes_through_when_a_lease_ends_in_time(full: Store, shared: Cluster, how: str) -> None:
    held, lease = lease_all(full, 2.0 if how == "expire" else 60.0)
    waiter = shared.connect(put_timeout_s=8.0)

    def later() -> None:
        time.sleep(0.4)
        if how == "release":
            full.release(lease)
        elif how == "remove":
            full.remove(held[3], force=True)

    thread = threading.Thread(target=later)
    thread.start()
    start = time.monotonic()
    assert waiter.put("patient", VALUE) is True
    took = time.monotonic() - start
    thread.join()
    assert waiter.get("patient") == VALUE
    assert took < 4.0
    full.remove_all(force=True)


def test_many_waiting_puts_all_get_the_space_that_comes(full: Store, shared: Cluster) -> None:
    lease_all(full, 1.5)
    waiter = shared.connect(put_timeout_s=10.0)
    results: list[bool] = []
    threads = [
        threading.Thread(target=lambda i=i: results.append(waiter.put(f"wait-{i}", VALUE)))
        for i in range(16)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(15)
    assert results == [True] * 16
    # Those that came first may have gone again for the later ones while all else was leased.
    got = waiter.get_batch([f"wait-{i}" for i in range(16)])
    assert all(value in (VALUE, None) for value in got)
    assert sum(value is not None for value in got) > 3


def test_batch_larger_than_the_pool_ends_and_keeps_what_it_says(full: Store) -> None:
    keys = [f"flood-{i}" for i in range(80)]
    codes = list(full.put_batch(keys, [VALUE] * 80))
    assert set(codes) <= {0, -200}
    assert codes.count(0) > 20
    there = full.exists_batch(keys)
    assert not any(t for t, code in zip(there, codes, strict=True) if code)
    assert sum(there) > 15
    got = full.get_batch([k for k, t in zip(keys, there, strict=True) if t])
    assert all(value in (VALUE, None) for value in got)


def test_value_larger_than_any_segment_is_refused_at_once(pool: Store) -> None:
    pool.put("small", b"x")
    before = counts(pool)
    space = max(s.info.data_bytes for s in pool.status().segments)
    start = time.monotonic()
    with pytest.raises(ValueTooLargeError):
        pool.put("huge", bytes(space + 1))
    assert time.monotonic() - start < 1.0
    assert list(pool.put_batch(["huge", "ok"], [bytes(space + 1), b"1"])) == [-600, 0]
    pool.remove("ok")
    assert counts(pool) == before


def test_value_as_large_as_a_segment_fits_or_is_refused_at_once(pool: Store) -> None:
    space = max(s.info.data_bytes for s in pool.status().segments)
    value = value_of("whole", 0, 16 * MIB) * (space // (16 * MIB) + 1)
    for size in (space, space - 4096, space - MIB):
        start = time.monotonic()
        try:
            assert pool.put("whole", value[:size]) is True
        except ValueTooLargeError:
            assert time.monotonic() - start < 1.0
            continue
        assert pool.get_batch(["whole"])[0] in (value[:size], None)
        pool.remove_batch(["whole"])  # above the high watermark it may have gone already


def test_pool_without_any_node_has_no_space(make_cluster: MakeCluster) -> None:
    store = make_cluster([]).connect(put_timeout_s=0.5)
    start = time.monotonic()
    with pytest.raises((NoSpaceError, ValueTooLargeError)):
        store.put("nowhere", b"x")
    assert time.monotonic() - start < 3
    assert store.exists("nowhere") is False
    assert store.match_prefix(["nowhere"]) == 0
    assert list(store.get_batch(["nowhere"])) == [None]


def test_watermark_eviction_stops_at_the_low_mark(pool: Store) -> None:
    info = pool.status().segments[0].info
    for i in range(info.data_bytes // MIB):
        pool.put(f"mark-{i}", VALUE)
    time.sleep(1.0)
    used = pool.status().segments[0].used_bytes
    assert used >= 0.8 * info.data_bytes, f"{used / info.data_bytes:.0%} is left of a full pool"


def test_small_objects_fill_the_pool_too(full: Store) -> None:
    keys = [f"tiny-{i}" for i in range(20_000)]
    start = time.monotonic()
    for at in range(0, len(keys), 1000):
        codes = full.put_batch(keys[at : at + 1000], [b"%d" % i for i in range(at, at + 1000)])
        assert set(codes) == {0}
    assert time.monotonic() - start < 20
    got = full.get_batch(keys[-200:])
    assert got == [b"%d" % i for i in range(len(keys) - 200, len(keys))]
    full.remove_all(force=True)
    eventually(lambda: counts(full)[2] == 0, 5, "space is back")
