"""Every get misses or returns exactly what was put under that key."""

import ctypes
import json
import random
from collections import Counter
from typing import Any

import numpy as np
import pytest

from moonpool import Store
from moonpool.core.keys import pack
from moonpool.errors import InvalidArgumentError, MoonpoolError
from moonpool.transport.base import Pieces
from tests.adversarial.conftest import MakeCluster
from tests.adversarial.harness import first_line
from tests.adversarial.values import MIB, value_of

SIZES = (1, 4095, 4096, 4097, MIB + 1)
CANARY = 0xA5


def address_of(buffer: Any) -> int:
    """Return where a buffer's bytes are."""
    return int(np.frombuffer(buffer, np.uint8).ctypes.data)


def pieces_of(objects: list[list[tuple[int, int]]]) -> Pieces:
    """Return objects given as lists of (address, length)."""
    flat = [piece for pieces in objects for piece in pieces]
    return Pieces(
        np.array([a for a, _ in flat], np.uint64),
        np.array([n for _, n in flat], np.uint64),
        np.cumsum([0] + [len(pieces) for pieces in objects]).astype(np.int64),
    )


def test_a_storm_of_threads_and_processes_never_reads_foreign_bytes(
    make_cluster: MakeCluster,
) -> None:
    cluster = make_cluster([("a", "12MB"), ("b", "12MB")], put_timeout_s=1.0)
    kinds = [("shm", "tcp"), ("tcp",), ("shm",)]
    workers = [
        cluster.worker(
            "storm",
            prefix="storm",
            keys=400,
            threads=4,
            seconds=4,
            seed=i,
            transports=kind,
            put_timeout_s=1.0,
        )
        for i, kind in enumerate(kinds)
    ]
    for worker in workers:
        assert first_line(worker) == "up"
    results = [json.loads(first_line(worker)) for worker in workers]
    faults = [fault for result in results for fault in result["faults"]]
    assert not faults, faults
    counts: Counter[str] = Counter()
    for result in results:
        assert result["counts"].get("hit", 0) > 50, results
        counts.update(result["counts"])
    assert counts["put"] > 100, counts
    assert counts["removed"] > 10, counts
    status = cluster.stores[0].status()
    assert status.counters, "no counters"
    cluster.stores[0].remove_all(force=True)
    cluster.stores[0].put("after", b"x")
    assert cluster.stores[0].get("after") == b"x"


@pytest.mark.parametrize("size", SIZES)
def test_edge_sizes_come_back_exactly(store: Store, size: int) -> None:
    value = value_of("edge", 1, size)
    assert store.put("edge", value) is True
    assert store.get("edge") == value
    assert store.size("edge") == size
    buffer = bytearray([CANARY]) * (size + 64)
    assert store.get_into("edge", memoryview(buffer)[32 : 32 + size]) == size
    assert bytes(buffer[32 : 32 + size]) == value
    assert set(buffer[:32]) | set(buffer[32 + size :]) == {CANARY}
    assert store.put("edge", b"other") is False
    assert store.get("edge") == value


def test_all_edge_sizes_in_one_batch(store: Store) -> None:
    keys = [f"batch-{size}" for size in SIZES]
    values = [value_of(key, 2, size) for key, size in zip(keys, SIZES, strict=True)]
    assert list(store.put_batch(keys, values)) == [0] * len(keys)
    assert list(store.get_batch([*keys, "absent"])) == [*values, None]


def test_odd_unordered_misaligned_and_empty_pieces(store: Store) -> None:
    chance = random.Random(5)
    source = bytearray(value_of("source", 0, 3 * MIB))
    target = bytearray([CANARY]) * (3 * MIB)
    store.register_buffer(source)
    store.register_buffer(target)
    lengths = (0, 1, 3, 61, 4095, 0, 4097, 34567, 7)
    puts: list[list[tuple[int, int]]] = []
    wanted: list[bytes] = []
    for _ in range(20):
        pieces = [(chance.randrange(0, 2 * MIB) | 1, n) for n in chance.sample(lengths, 9)]
        puts.append([(address_of(source) + at, n) for at, n in pieces])
        wanted.append(b"".join(bytes(source[at : at + n]) for at, n in pieces))
    keys = [f"pieces-{i}" for i in range(20)]
    assert store.put_pieces(keys, pieces_of(puts)).tolist() == [0] * 20
    assert list(store.get_batch(keys)) == wanted
    size = len(wanted[0])
    gets, spans = [], []
    for i in range(20):
        cuts = sorted(chance.sample(range(1, size), 5))
        lens = [b - a for a, b in zip([0, *cuts], [*cuts, size], strict=True)]
        lens.insert(2, 0)
        at = i * (size + 1024) + 13
        places = []
        for n in chance.sample(lens, len(lens)):
            places.append((at, n))
            at += n + 11
        chance.shuffle(places)
        spans.append(places)
        gets.append([(address_of(target) + a, n) for a, n in places])
    assert store.get_pieces(keys, pieces_of(gets)).tolist() == [0] * 20
    touched = np.zeros(len(target), bool)
    for want, places in zip(wanted, spans, strict=True):
        assert b"".join(bytes(target[a : a + n]) for a, n in places) == want
        for a, n in places:
            touched[a : a + n] = True
    assert (np.frombuffer(bytes(target), np.uint8)[~touched] == CANARY).all()


def test_overlapping_source_pieces_are_put_as_they_are(store: Store) -> None:
    source = bytearray(value_of("overlap", 0, 100_000))
    store.register_buffer(source)
    at = address_of(source)
    parts = [(5, 50_000), (1, 50_000), (0, 100_000), (99_999, 1), (5, 50_000)]
    codes = store.put_pieces(["overlap"], pieces_of([[(at + a, n) for a, n in parts]]))
    assert codes.tolist() == [0]
    assert store.get("overlap") == b"".join(bytes(source[a : a + n]) for a, n in parts)


def test_overlapping_target_pieces_harm_nothing_else(store: Store) -> None:
    value = value_of("twice", 0, 10_000)
    store.put("twice", value)
    store.put("fine", value)
    target = bytearray([CANARY]) * 40_000
    store.register_buffer(target)
    at = address_of(target)
    codes = store.get_pieces(
        ["twice", "fine"],
        pieces_of([[(at + 100, 6000), (at + 3000, 4000)], [(at + 20_000, 10_000)]]),
    )
    assert codes[1] == 0
    assert bytes(target[20_000:30_000]) == value
    assert set(target[:100]) | set(target[7000:20_000]) | set(target[30_000:]) == {CANARY}
    assert store.get("twice") == value


def test_room_that_is_larger_or_smaller_than_the_object(store: Store) -> None:
    value = value_of("room", 0, 9000)
    for key in ("a", "b", "c"):
        store.put(key, value)
    target = bytearray([CANARY]) * 60_000
    store.register_buffer(target)
    at = address_of(target)
    gets = [[(at, 8999)], [(at + 20_000, 4000), (at + 25_000, 8000)], [(at + 40_000, 9000)]]
    codes = store.get_pieces(["a", "b", "c"], pieces_of(gets)).tolist()
    assert codes == [-600, 0, 0]
    assert bytes(target[20_000:24_000] + target[25_000:30_000]) == value
    assert bytes(target[40_000:49_000]) == value
    rest = target[8999:20_000] + target[24_000:25_000] + target[30_000:40_000] + target[49_000:]
    assert set(rest) == {CANARY}


def test_duplicate_keys_inside_one_batch(store: Store) -> None:
    values = [value_of("dup", n, 5000) for n in range(3)]
    codes = list(store.put_batch(["dup", "x", "dup", "dup"], [values[0], b"x", *values[1:]]))
    assert sorted(codes) == [-705, -705, 0, 0]
    assert codes[1] == 0
    winner = [codes[0], codes[2], codes[3]].index(0)
    assert list(store.get_batch(["dup", "dup", "x", "dup"])) == [
        values[winner],
        values[winner],
        b"x",
        values[winner],
    ]
    target = bytearray(15_000)
    store.register_buffer(target)
    at = address_of(target)
    got = store.get_pieces(["dup"] * 3, pieces_of([[(at + 5000 * i, 5000)] for i in range(3)]))
    assert got.tolist() == [0, 0, 0]
    assert bytes(target) == values[winner] * 3
    assert store.match_prefix(["dup", "dup", "x"]) == 3
    assert sorted(store.remove_batch(["dup", "dup"])) == [-704, 0]
    more = store.put_pieces(["new", "new"], pieces_of([[(at, 5000)], [(at + 5000, 5000)]]))
    assert sorted(more.tolist()) == [-705, 0]


def test_strange_keys_are_all_different_objects(store: Store) -> None:
    digest = "0123456789abcdef0123456789abcdef"
    raw = bytes.fromhex(digest)
    keys: list[Any] = [
        "k", "\x00", "\x00k", "\x01k", "\x10" + "n" * 16 + "d" * 16,
        digest, f"{digest}/{digest}", f"/{digest}", f"{digest}/", f"0x{digest}", digest.upper(),
        "é", "e\u0301", "a/b", "../../etc/passwd", "a b\n\t", " ", "k ", "-k", "--help", "%s", "*",
        "x" * 4096, "x" * 4095, "x" * 4095 + "y", "é" * 2048, "\U0001f600",
        pack(b"\xff\xfe\x80"), pack(b"\xff" * 4096), pack(b"\x00" * 4096), pack(b"\x00" * 2),
        pack(raw), pack(raw, raw), pack(raw, b"k"), pack(b"k", b"k"), pack(b"k", raw),
        pack(b"\x00", b"\x00"), pack(b"k", b"n" * 64),
    ]  # fmt: skip
    values = [value_of(f"strange-{i}", 0, 1 + i * 331) for i in range(len(keys))]
    assert list(store.put_batch(keys, values)) == [0] * len(keys)
    assert list(store.get_batch(keys)) == values
    assert [store.get(key) for key in keys] == values
    assert len({info.key for info in store.list()}) == len(keys)
    assert store.match_prefix(keys) == len(keys)
    for key in keys[::2]:
        store.remove(key)
    assert list(store.exists_batch(keys)) == [i % 2 == 1 for i in range(len(keys))]


def test_text_and_packed_form_of_the_same_key_are_one_object(store: Store) -> None:
    store.put("same", b"1")
    assert store.put(pack(b"same"), b"2") is False
    assert store.get(pack(b"same")) == b"1"


def test_match_digests_sees_its_own_namespace_only(store: Store) -> None:
    digests = [bytes([i]) * 16 for i in range(10)]
    store.put_batch([pack(d, b"n" * 16) for d in digests], [b"v"] * 10)
    packed = b"".join(digests)
    assert store.match_digests(b"n" * 16, packed) == 10
    assert store.match_digests(b"m" * 16, packed) == 0
    store.remove(pack(digests[4], b"n" * 16))
    assert store.match_digests(b"n" * 16, packed) == 4


def test_values_are_copied_and_any_contiguous_buffer_will_do(store: Store) -> None:
    grid = np.arange(6000, dtype=np.float32).reshape(20, 300)
    store.put("grid", grid)
    wanted = grid.tobytes()
    grid[:] = 0
    assert store.get("grid") == wanted
    into = np.empty((300, 20), np.float32)
    assert store.get_into("grid", into) == len(wanted)
    assert into.tobytes() == wanted
    with pytest.raises((MoonpoolError, BufferError, TypeError)):
        store.put("slices", memoryview(bytes(100))[::2])
    with pytest.raises((MoonpoolError, BufferError, TypeError)):
        store.get_into("grid", memoryview(bytearray(80_000))[::2])
    with pytest.raises((MoonpoolError, BufferError, TypeError)):
        store.get_into("grid", bytes(len(wanted)))
    assert not store.exists("slices")


def test_parts_scatter_and_gather(store: Store) -> None:
    parts = [b"", b"a", value_of("p", 0, 4097), b"", b"tail"]
    assert store.put_from_parts("parts", parts) is True
    assert store.get("parts") == b"".join(parts)
    out = [bytearray(1), bytearray(0), bytearray(5000)]
    assert store.get_into_parts("parts", out) == sum(map(len, parts))
    assert (out[0] + out[2])[: sum(map(len, parts))] == b"".join(parts)


def test_impossible_pieces_are_refused_and_change_nothing(store: Store) -> None:
    memory = bytearray([CANARY]) * 10_000
    store.register_buffer(memory)
    at = address_of(memory)
    store.put("there", b"x" * 100)
    u64, i64 = np.uint64, np.int64
    good = np.array([at], u64), np.array([100], u64), np.array([0, 1], i64)
    bad = [
        Pieces(np.array([at - 1], u64), *good[1:]),
        Pieces(np.array([at + 9_901], u64), *good[1:]),
        Pieces(np.array([0], u64), *good[1:]),
        Pieces(np.array([2**64 - 50], u64), *good[1:]),
        Pieces(good[0], np.array([2**63], u64), good[2]),
        Pieces(good[0], np.array([2**64 - at + 10], u64), good[2]),
        Pieces(good[0], good[1], np.array([0, 2], i64)),
        Pieces(good[0], good[1], np.array([-1, 1], i64)),
        Pieces(good[0], good[1], np.array([1, 0], i64)),
        Pieces(good[0], good[1], np.array([0], i64)),
        Pieces(good[0], good[1], np.array([0, 1, 1], i64)),
        Pieces(good[0], np.array([50, 50], u64), good[2]),
        Pieces(np.array([at] * 2, u64), np.array([2**63] * 2, u64), np.array([0, 2], i64)),
    ]
    for i, pieces in enumerate(bad):
        with pytest.raises(InvalidArgumentError):
            store.put_pieces([f"bad-{i}"], pieces)
        with pytest.raises(InvalidArgumentError):
            store.get_pieces(["there"], pieces)
    assert set(memory) == {CANARY}
    assert not any(store.exists_batch([f"bad-{i}" for i in range(len(bad))]))
    empty = store.put_pieces([], pieces_of([]))
    assert empty.tolist() == []


def test_an_object_of_only_empty_pieces_is_refused(store: Store) -> None:
    memory = bytearray(100)
    store.register_buffer(memory)
    try:
        codes = store.put_pieces(
            ["hollow", "solid"],
            pieces_of([[(address_of(memory), 0)], [(address_of(memory), 10)]]),
        ).tolist()
    except InvalidArgumentError:
        assert not store.exists("solid")
    else:
        assert codes == [-600, 0]
    assert not store.exists("hollow")


def test_memory_that_does_not_stay_registered(store: Store) -> None:
    memory = ctypes.create_string_buffer(b"y" * 4096, 4096)
    at = ctypes.addressof(memory)
    store.register_memory(at, 4096)
    assert store.put_pieces(["before"], pieces_of([[(at, 4096)]])).tolist() == [0]
    store.unregister_memory(at)
    with pytest.raises(InvalidArgumentError):
        store.put_pieces(["after"], pieces_of([[(at, 4096)]]))
    with pytest.raises(InvalidArgumentError):
        store.get_pieces(["before"], pieces_of([[(at, 4096)]]))
    with pytest.raises(InvalidArgumentError):
        store.unregister_memory(at)
    assert store.get("before") == b"y" * 4096


def test_forked_processes_do_not_mix_up_each_others_answers(
    make_cluster: MakeCluster,
) -> None:
    cluster = make_cluster([("a", "32MB")])
    keys = [f"fork-{i}" for i in range(40)]
    cluster.stores[0].put_batch(keys, [value_of(key) for key in keys])
    for transports in (("shm",), ("tcp",)):
        worker = cluster.worker("fork", keys=keys, transports=transports)
        assert json.loads(first_line(worker)) == []
