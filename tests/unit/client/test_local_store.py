"""Store's verbs on the pool in this process: the same code as over processes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from moonpool import (
    BufferAlreadyRegisteredError,
    BufferNotRegisteredError,
    BufferTooSmallError,
    InvalidArgumentError,
    InvalidKeyError,
    LeasedError,
    MasterUnreachableError,
    NotFoundError,
    Pieces,
    Store,
    ValueTooLargeError,
    pack,
)
from moonpool.client.getting import Getter
from moonpool.client.local import LocalChannel
from moonpool.transport.segment import Segment

MIB = 1 << 20


@pytest.fixture
def store() -> Iterator[Store]:
    with Store.local("64MB") as made:
        yield made


@pytest.fixture
def few() -> Iterator[Store]:
    """A pool of 64 MiB whose table has 4096 entries."""
    channel = LocalChannel(Segment.anonymous(64 * MIB, 4096))
    with Store(channel, channel.opener, put_timeout_s=5.0, lease_s=10.0) as made:
        yield made


@pytest.fixture
def small() -> Iterator[Store]:
    with Store.local("16MB") as made:
        yield made


def unchanged(store: Store) -> tuple[int, int]:
    return store.status().objects, store.status().puts_in_progress


def test_put_and_get(store: Store) -> None:
    assert store.put("a", b"hello")
    assert store.get("a") == b"hello"
    assert store.size("a") == 5
    assert store.exists("a")
    assert not store.exists("b")


def test_objects_are_immutable(store: Store) -> None:
    assert store.put("a", b"first")
    assert not store.put("a", b"second")
    assert store.get("a") == b"first"
    assert store.put_batch(["a", "b", "b"], [b"x", b"y", b"z"]) == [-705, 0, -705]


@pytest.mark.parametrize("size", [1, 4095, 4096, 4097, MIB - 1, MIB, 3 * MIB + 17])
def test_sizes(store: Store, size: int) -> None:
    value = np.random.default_rng(size).bytes(size)
    assert store.put("a", value)
    assert store.get("a") == value


@pytest.mark.parametrize(
    "key",
    [
        "",
        "\ud800",
        "x" * 4097,
        b"",
        b"\x00",
        b"\x05abc",
        b"\xff" * 300,
        7,
        None,
        b"\x00" + b"x" * 4097,
    ],
)
def test_bad_keys_are_refused_and_nothing_changes(store: Store, key: str) -> None:
    for call in (
        lambda: store.put(key, b"x"),
        lambda: store.get(key),
        lambda: store.get_into(key, bytearray(1)),
        lambda: store.exists(key),
        lambda: store.remove(key),
        lambda: store.stat(key),
        lambda: store.put_batch(["good", key], [b"x", b"y"]),
        lambda: store.get_batch(["good", key]),
        lambda: store.match_prefix(["good", key]),
        lambda: store.hold(["good", key], 1.0),
        lambda: store.put("child", b"x", parent=key) if key is not None else store.put(key, b"x"),
    ):
        with pytest.raises(InvalidKeyError):
            call()
    assert unchanged(store) == (0, 0)


@pytest.mark.parametrize("key", ["x" * 4096, "ключ 🔑", "\udcff", "a/b", "0" * 32 + "/" + "0" * 32])
def test_any_text_is_a_key(store: Store, key: str) -> None:
    assert store.put(key, b"v")
    assert store.get(key) == b"v"
    assert store.match_prefix([key]) == 1


def test_a_value_larger_than_any_segment(store: Store) -> None:
    with pytest.raises(ValueTooLargeError, match="no segment can hold"):
        store.put("a", bytes(65 * MIB))
    assert store.put_batch(["a", "b"], [bytes(65 * MIB), b"x"]) == [-600, 0]
    assert unchanged(store) == (1, 0)


def test_an_empty_value_is_refused(store: Store) -> None:
    with pytest.raises(InvalidArgumentError, match="empty"):
        store.put("a", b"")
    with pytest.raises(InvalidArgumentError, match="object 1 is empty"):
        store.put_batch(["a", "b"], [b"x", b""])
    assert unchanged(store) == (0, 0)


@pytest.mark.parametrize("value", ["text", 7, None, np.ones(8)[::2], np.array([object()])])
def test_values_are_contiguous_buffers(store: Store, value: bytes) -> None:
    with pytest.raises(InvalidArgumentError):
        store.put("a", value)
    assert unchanged(store) == (0, 0)


def test_get_into_a_larger_buffer_writes_the_start_only(store: Store) -> None:
    store.put("a", b"hello")
    buffer = bytearray(b"-" * 8)
    assert store.get_into("a", buffer) == 5
    assert buffer == b"hello---"


def test_a_buffer_that_is_too_small_is_left_alone(store: Store) -> None:
    store.put("a", b"hello")
    buffer = bytearray(b"----")
    with pytest.raises(BufferTooSmallError, match="4 bytes of room for an object of 5"):
        store.get_into("a", buffer)
    assert buffer == b"----"
    assert store.status().leases == 0


def test_get_into_read_only_memory_is_refused(store: Store) -> None:
    store.put("a", b"hello")
    with pytest.raises(InvalidArgumentError, match="read-only"):
        store.get_into("a", b"12345")


def test_what_is_not_there(store: Store) -> None:
    with pytest.raises(NotFoundError):
        store.get("a")
    with pytest.raises(KeyError):
        store.size("a")
    with pytest.raises(NotFoundError):
        store.remove("a")
    assert store.get_batch(["a"]) == [None]
    assert store.remove_batch(["a"]) == [-704]


def test_parts_are_gathered_and_scattered(store: Store) -> None:
    assert store.put_from_parts("a", [b"ab", b"", np.frombuffer(b"cdefg", np.uint8)])
    left, right = bytearray(3), np.zeros(10, np.uint8)
    assert store.get_into_parts("a", [left, right]) == 7
    assert left + right.tobytes() == b"abcdefg" + bytes(6)
    assert store.put_from("b", b"abcdef", 4)
    assert store.get("b") == b"abcd"
    for size in (-1, 7):
        with pytest.raises(InvalidArgumentError):
            store.put_from("c", b"abcdef", size)


def test_batches(store: Store) -> None:
    keys = [f"k{i}" for i in range(1300)]
    values = [f"value {i}".encode() for i in range(1300)]
    assert store.put_batch(keys[:-1], values[:-1]) == [0] * 1299
    assert store.get_batch(keys) == [*values[:-1], None]
    assert store.exists_batch(keys) == [True] * 1299 + [False]
    assert store.match_prefix(keys) == 1299
    assert store.remove_batch(keys) == [0] * 1299 + [-704]
    assert store.put_batch([], []) == []
    assert store.get_batch([]) == []
    assert store.exists_batch([]) == []


def test_batches_of_different_lengths_are_refused(store: Store) -> None:
    with pytest.raises(InvalidArgumentError):
        store.put_batch(["a", "b"], [b"x"])
    with pytest.raises(InvalidArgumentError):
        store.put_batch(["a", "b"], [b"x", b"y"], parents=["c"])
    assert unchanged(store) == (0, 0)


def test_matching_by_digests(store: Store) -> None:
    namespace = b"fingerprint-1234"
    digests = [i.to_bytes(16, "big") for i in range(10)]
    store.put_batch([pack(d, namespace) for d in digests[:7]], [b"v"] * 7)
    assert store.match_digests(namespace, b"".join(digests)) == 7
    assert store.match_digests(b"other", b"".join(digests)) == 0
    assert store.match_digests(namespace, b"") == 0
    with pytest.raises(InvalidArgumentError):
        store.match_digests(namespace, b"123")
    with pytest.raises(InvalidArgumentError):
        store.match_digests(namespace, b"".join(digests), stride=0)


def test_a_lookup_takes_no_lease_and_a_hold_does(store: Store) -> None:
    store.put_batch(["a", "b"], [b"x", b"y"])
    store.match_prefix(["a", "b"])
    store.exists("a")
    store.stat("a")
    assert store.status().leases == 0
    lease = store.hold(["a", "b", "c"], 60.0)
    assert lease.count == 2
    with pytest.raises(LeasedError):
        store.remove("a")
    assert store.remove_batch(["b"]) == [-706]
    store.release(lease)
    store.release(lease)
    store.remove("a")
    store.remove("b", force=True)
    assert store.status().objects == 0


def test_a_get_gives_its_lease_back(store: Store) -> None:
    store.put_batch(["a", "b"], [b"x", b"y"])
    store.get("a")
    store.get_batch(["a", "b", "c"])
    store.get_into("b", bytearray(1))
    assert store.status().leases == 0


def test_eviction_makes_room_and_keeps_what_is_held(small: Store) -> None:
    value = bytes(MIB)
    small.put("held", b"x" * MIB)
    lease = small.hold(["held"], 60.0)
    for i in range(64):
        assert small.put(f"k{i}", value)
    assert small.get("held") == b"x" * MIB
    assert small.exists("k63")
    assert not small.exists("k0")
    small.release(lease)


def test_children_are_evicted_before_their_parents(small: Store) -> None:
    chain = [f"c{i}" for i in range(8)]
    for above, key in zip([None, *chain], chain, strict=False):
        small.put(key, bytes(MIB), parent=above)
    for i in range(12):
        small.put(f"k{i}", bytes(MIB))
    kept = small.exists_batch(chain)
    assert kept == sorted(kept, reverse=True)
    assert small.match_prefix(chain) == sum(kept)


def test_small_objects_use_up_the_table_before_the_space(few: Store) -> None:
    store = few
    keys = [str(i) for i in range(6000)]  # of 4096 entries
    for start in range(0, 6000, 1000):
        some = keys[start : start + 1000]
        assert store.put_batch(some, [key.encode() for key in some]) == [0] * 1000
    assert store.status().objects <= 4096
    assert store.get_batch(keys[-2000:]) == [key.encode() for key in keys[-2000:]]
    assert not store.exists("0")


def test_a_pool_in_this_process_has_an_entry_for_each_page(small: Store) -> None:
    keys = [str(i) for i in range(3700)]  # of 4096 pages, below the watermark
    assert not any(small.put_batch(keys, [b"v"] * 3700))
    assert all(small.exists_batch(keys))


def test_a_table_of_leased_objects_is_full_until_they_are_released(few: Store) -> None:
    store = few
    held = [str(i) for i in range(3800)]
    assert not any(store.put_batch(held, [b"v"] * 3800))
    lease = store.hold(held, 60.0)
    value = np.frombuffer(b"w", np.uint8)
    store.register_buffer(value)
    ones = np.ones(500, np.uint64)
    pieces = Pieces(ones * np.uint64(value.ctypes.data), ones, np.arange(501))
    codes = store.put_pieces([f"a{i}" for i in range(500)], pieces, timeout_s=0.0)
    assert set(codes.tolist()) == {0, -200}
    assert all(store.exists_batch(held))
    store.release(lease)
    assert not store.put_pieces([f"b{i}" for i in range(500)], pieces, timeout_s=0.0).any()


def test_listing(store: Store) -> None:
    keys = [f"{'ab'[i % 2]}{i}" for i in range(2500)]
    store.put_batch(keys, [b"v"] * 2500)
    store.put(pack(b"d" * 16, b"n" * 16), b"v")
    found = sorted(info.key for info in store.list("a"))  # chunks of a batch end in any order
    assert found == sorted(f"\0{k}".encode() for k in keys[::2])
    assert len(list(store.list())) == 2501
    assert len(list(store.list(namespace=b"n" * 16))) == 1
    assert store.remove_all("a") == 1250
    assert store.remove_all() == 1251


def test_zero_copy(store: Store) -> None:
    source = np.random.default_rng(1).integers(0, 256, 100_000, np.uint8)
    target = np.zeros_like(source)
    store.register_buffer(source)
    store.register_buffer(target)
    lengths = np.array([1000, 30_000, 5000, 64_000], np.uint64)
    offsets = np.array([0, 1000, 31_000, 36_000], np.uint64)
    starts = np.array([0, 2, 4], np.int64)
    out = Pieces(offsets + np.uint64(source.ctypes.data), lengths, starts)
    back = Pieces(offsets + np.uint64(target.ctypes.data), lengths, starts)
    assert store.put_pieces(["a", "b"], out).tolist() == [0, 0]
    assert store.put_pieces(["b", "a"], out).tolist() == [-705, -705]
    assert store.get_pieces(["a", "b"], back).tolist() == [0, 0]
    assert np.array_equal(source, target)
    assert store.size("a") == 31_000


@pytest.mark.parametrize(("at_once", "calls"), [(MIB, 4), (2 * MIB, 2), (64 * MIB, 1)])
def test_a_call_moves_as_much_at_once_as_it_was_told(
    store: Store, monkeypatch: pytest.MonkeyPatch, at_once: int, calls: int
) -> None:
    asked: list[int] = []
    read_chunk = Getter.read_chunk

    def counted(getter: Getter, keys: list[bytes], *rest: Any) -> Any:
        asked.append(len(keys))
        return read_chunk(getter, keys, *rest)

    monkeypatch.setattr(Getter, "read_chunk", counted)
    store.move_at_once(at_once)
    source = np.random.default_rng(2).integers(0, 256, 4 * MIB, np.uint8)
    target = np.zeros_like(source)
    store.register_buffer(source)
    store.register_buffer(target)
    offsets, sizes = np.arange(4, dtype=np.uint64) * np.uint64(MIB), np.full(4, MIB, np.uint64)
    out = Pieces(offsets + np.uint64(source.ctypes.data), sizes, np.arange(5))
    back = Pieces(offsets + np.uint64(target.ctypes.data), sizes, np.arange(5))
    assert not store.put_pieces(["a", "b", "c", "d"], out).any()
    assert not store.get_pieces(["a", "b", "c", "d"], back).any()
    assert np.array_equal(source, target)
    assert (len(asked), sum(asked)) == (calls, 4)


def test_zero_copy_with_a_hold_keeps_the_lease(store: Store) -> None:
    store.put("a", b"hello")
    target = np.zeros(8, np.uint8)
    store.register_buffer(target)
    room = Pieces(np.array([target.ctypes.data]), np.array([8]), np.array([0, 1]))
    lease = store.hold(["a"], 60.0)
    assert store.get_pieces(["a"], room, lease=lease.id).tolist() == [0]
    assert target.tobytes() == b"hello\0\0\0"
    assert store.status().leases == 1
    store.release(lease.id)
    assert store.status().leases == 0


def test_zero_copy_reports_each_object(store: Store) -> None:
    store.put_batch(["small", "large"], [b"ok", b"too large"])
    target = np.zeros(12, np.uint8)
    store.register_buffer(target)
    at = target.ctypes.data
    room = Pieces(np.array([at, at + 4, at + 8]), np.array([4, 4, 4]), np.arange(4))
    assert store.get_pieces(["small", "large", "none"], room).tolist() == [0, -600, -704]
    assert target.tobytes() == b"ok" + bytes(10)


def test_zero_copy_needs_registered_memory(store: Store) -> None:
    source = np.zeros(16, np.uint8)
    memory = Pieces(np.array([source.ctypes.data]), np.array([16]), np.array([0, 1]))
    with pytest.raises(BufferNotRegisteredError):
        store.put_pieces(["a"], memory)
    store.register_memory(source.ctypes.data, 15)
    with pytest.raises(BufferNotRegisteredError):
        store.put_pieces(["a"], memory)
    with pytest.raises(BufferNotRegisteredError):
        store.get_pieces(["a"], memory)
    with pytest.raises(BufferAlreadyRegisteredError):
        store.register_buffer(source)
    store.unregister_memory(source.ctypes.data)
    store.register_buffer(source)
    assert store.put_pieces(["a"], memory).tolist() == [0]
    store.unregister_buffer(source)
    with pytest.raises(BufferNotRegisteredError):
        store.put_pieces(["b"], memory)
    assert unchanged(store) == (1, 0)


def test_read_only_buffers_can_be_put_but_not_loaded_into(store: Store) -> None:
    source = b"0123456789abcdef"
    store.register_buffer(source)
    address = np.frombuffer(source, np.uint8).ctypes.data
    memory = Pieces(np.array([address]), np.array([16]), np.array([0, 1]))
    assert store.put_pieces(["a"], memory).tolist() == [0]
    with pytest.raises(InvalidArgumentError, match="read-only"):
        store.get_pieces(["a"], memory)


@pytest.mark.parametrize("capacity", ["", "1XB", 0, -1, "0"])
def test_a_capacity_that_is_no_size(capacity: str) -> None:
    with pytest.raises(InvalidArgumentError, match="no size"):
        Store.local(capacity)


def test_a_closed_store_fails(store: Store) -> None:
    store.put("a", b"x")
    store.close()
    store.close()
    for call in (lambda: store.get("a"), lambda: store.put("b", b"x"), lambda: store.exists("a")):
        with pytest.raises(MasterUnreachableError, match="closed"):
            call()


def test_many_threads_share_a_store(store: Store) -> None:
    failed: list[object] = []

    def work(thread: int) -> None:
        for i in range(60):
            value = f"{thread} {i}".encode() * 50
            key = f"t{thread}-{i}"
            if not store.put(key, value) or store.get(key) != value:
                failed.append(key)
            store.remove(key, force=True)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert store.status().objects == 0
    assert store.status().leases == 0


def test_exact_reads_touch_nothing_when_an_object_is_smaller_than_its_pieces() -> None:
    with Store.local("8MB") as store:
        store.put("short", b"s" * 100)
        store.put("right", b"r" * 200)
        target = np.zeros(400, np.uint8)
        store.register_buffer(target)
        at = target.ctypes.data
        pieces = Pieces(
            np.array([at, at + 200], np.uint64), np.full(2, 200, np.uint64), np.arange(3)
        )
        assert store.get_pieces(["short", "right"], pieces, exact=True).tolist() == [-600, 0]
        assert not target[:200].any()
        assert store.get_pieces(["short", "right"], pieces).tolist() == [0, 0]
        assert target[:100].tobytes() == b"s" * 100
