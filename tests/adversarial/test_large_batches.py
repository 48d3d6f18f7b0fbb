"""Batches of thousands of keys, of many pieces, with duplicates, by many threads and processes."""

import json
import random
import threading
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest

from moonpool import Store
from moonpool.errors import BufferNotRegisteredError, MoonpoolError
from tests.adversarial.harness import Cluster, first_line, running
from tests.adversarial.leftovers import nothing_left
from tests.adversarial.test_integrity import CANARY, address_of, pieces_of
from tests.adversarial.values import BASE, MIB, value_of

MANY = 5000
EDGES = (1, 4095, 4096, 4097, 2 * 4096, 65_535, 65_536, 65_537, MIB - 1, MIB, MIB + 1)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Run a master and two nodes."""
    with running(tmp_path_factory.mktemp("pair"), [("a", "48MB"), ("b", "48MB")]) as cluster:
        yield cluster


@pytest.fixture(params=["local", "shm", "tcp"])
def large(request: pytest.FixtureRequest, pair: Cluster) -> Iterator[Store]:
    """Return an empty pool of 96 MiB."""
    pair.stores[0].remove_all(force=True)
    with nothing_left():
        if request.param == "local":
            store = Store.local("96MB")
        else:
            store = Store.connect(pair.address, transports=(request.param,))
        with store:
            yield store


def test_five_thousand_keys_at_a_time(large: Store) -> None:
    store = large
    keys = [f"many-{i}" for i in range(MANY)]
    sizes = [1 + i * 7 % 5000 for i in range(MANY)]
    values = [BASE[i * 11 : i * 11 + size] for i, size in enumerate(sizes)]
    assert store.exists_batch(keys) == [False] * MANY
    assert store.put_batch(keys, values) == [0] * MANY
    assert store.exists_batch(keys) == [True] * MANY
    assert store.match_prefix(keys) == MANY
    assert store.get_batch(keys) == values
    assert store.put_batch(keys, values[::-1]) == [-705] * MANY
    order = random.Random(1).sample(range(MANY), MANY)
    assert store.get_batch([keys[i] for i in order]) == [values[i] for i in order]
    assert store.remove_batch(keys[::2]) == [0] * (MANY // 2)
    assert store.get_batch(keys[:40]) == [v if i % 2 else None for i, v in enumerate(values[:40])]
    assert store.match_prefix(keys[1::2]) == MANY // 2


def test_64_pieces_an_object_at_the_ends_of_registered_memory(large: Store) -> None:
    store, chance = large, random.Random(2)
    memory = np.frombuffer(bytearray(BASE[: 20 * MIB]), np.uint8)
    source = memory[1 : 1 + 12 * MIB]
    start, size = int(source.ctypes.data), source.nbytes
    store.register_memory(start, size)
    objects, wanted = [], []
    for i in range(120):
        lengths = [chance.choice((0, 1, 13, 511, 512, 4095, 4096, 4097)) for _ in range(62)]
        places = [(chance.randrange(size - n + 1), n) for n in lengths]
        # The first and the last bytes of the memory, and nothing behind its end.
        places += [(0, 1 + i), (size - 1 - i, 1 + i)] if i % 2 else [(size, 0), (size - 1, 1)]
        objects.append([(start + at, n) for at, n in places])
        wanted.append(b"".join(source[at : at + n].tobytes() for at, n in places))
    keys = [f"pieces-{i}" for i in range(len(objects))]
    assert store.put_pieces(keys, pieces_of(objects)).tolist() == [0] * len(keys)
    assert store.get_batch(keys) == wanted
    target = bytearray([CANARY]) * (sum(map(len, wanted)) + 128)
    store.register_buffer(target)
    at, back = 64, []
    for value in wanted:
        cuts = sorted(chance.sample(range(len(value)), 63))
        edges = [0, *cuts, len(value)]
        back.append([(address_of(target) + at + a, b - a)
                     for a, b in pairwise(edges)])  # fmt: skip
        at += len(value)
    assert store.get_pieces(keys, pieces_of(back)).tolist() == [0] * len(keys)
    assert target == bytes([CANARY]) * 64 + b"".join(wanted) + bytes([CANARY]) * 64
    for bad in (
        [(start + size - 1, 2)],
        [(start - 1, 2)],
        [(start + size, 1)],
        [(start, size + 1)],
    ):
        with pytest.raises(BufferNotRegisteredError):
            store.put_pieces(["bad"], pieces_of([bad]))
        with pytest.raises(BufferNotRegisteredError):
            store.get_pieces(keys[:1], pieces_of([bad]))
    store.unregister_memory(start)
    store.unregister_buffer(target)


def test_edges_of_pages_and_16_mib_in_one_batch(large: Store) -> None:
    store = large
    sizes = [*EDGES, 16 * MIB - 1, 16 * MIB]
    keys = [f"edge-{size}" for size in sizes]
    values = [value_of(key, 1, size) for key, size in zip(keys, sizes, strict=True)]
    assert store.put_batch(keys, values) == [0] * len(keys)
    assert store.get_batch(keys) == values
    for key, value in zip(keys, values, strict=True):
        buffer = bytearray([CANARY]) * (len(value) + 2)
        assert store.get_into(key, memoryview(buffer)[1:-1]) == len(value)
        assert buffer[1:-1] == value
        assert (buffer[0], buffer[-1]) == (CANARY, CANARY)
    big = value_of("big", 0, 16 * MIB + 1)
    assert store.put("big", big)
    assert store.get("big") == big


def test_a_key_that_occurs_several_times_in_one_batch(large: Store) -> None:
    store = large
    keys = [f"twice-{i % 50}" for i in range(150)]
    values = [value_of(key, i // 50, 3000) for i, key in enumerate(keys)]
    codes = store.put_batch(keys, values)
    assert codes[:50] == [0] * 50
    assert set(codes[50:]) == {-705}
    assert store.get_batch(keys) == values[:50] * 3
    memory = bytearray(150 * 3000)
    store.register_buffer(memory)
    pieces = pieces_of([[(address_of(memory) + i * 3000, 3000)] for i in range(150)])
    assert store.get_pieces(keys, pieces).tolist() == [0] * 150
    assert memory == b"".join(values[:50] * 3)
    store.unregister_buffer(memory)
    assert store.exists_batch(keys) == [True] * 150
    removed = store.remove_batch(keys)
    assert removed[:50] == [0] * 50
    assert set(removed[50:]) == {-704}


def test_one_target_for_several_objects_is_one_of_them(large: Store) -> None:
    store = large
    keys = [f"over-{i}" for i in range(20)]
    values = [bytes([i]) * 5000 for i in range(20)]
    store.put_batch(keys, values)
    memory = bytearray(5000)
    store.register_buffer(memory)
    place = [(address_of(memory), 5000)]
    codes = store.get_pieces(keys, pieces_of([place] * 20)).tolist()
    assert set(codes) <= {0, -801}, codes
    assert set(memory) <= set(range(20))
    store.unregister_buffer(memory)


def test_many_threads_on_one_store(large: Store) -> None:
    store, faults = large, list[str]()

    def work(number: int) -> None:
        chance = random.Random(number)
        memory = bytearray(64 * 3000)
        store.register_buffer(memory)
        try:
            for turn in range(12):
                keys = [f"shared-{turn}-{i}" for i in range(64)]
                chance.shuffle(keys)
                values = [value_of(key, 0, 3000) for key in keys]
                codes = set(store.put_batch(keys, values))
                if not codes <= {0, -705}:
                    faults.append(f"put: {codes}")
                start = address_of(memory)
                pieces = pieces_of([[(start + i * 3000, 3000)] for i in range(64)])
                codes = set(store.get_pieces(keys, pieces).tolist())
                if not codes <= {0, -703, -704}:
                    faults.append(f"get: {codes}")
                for i, code in enumerate(store.get_pieces(keys, pieces).tolist()):
                    if code == 0 and memory[i * 3000 : (i + 1) * 3000] != values[i]:
                        faults.append(f"wrong bytes of {keys[i]}")
        except MoonpoolError as error:
            faults.append(repr(error))
        finally:
            store.unregister_buffer(memory)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults, faults[:5]
    for turn in range(12):
        keys = [f"shared-{turn}-{i}" for i in range(64)]
        assert store.get_batch(keys) == [value_of(key, 0, 3000) for key in keys]


def test_processes_that_put_and_get_the_same_keys(pair: Cluster) -> None:
    workers = [
        pair.worker("storm", prefix="same", keys=30, threads=3, seconds=1.0, seed=i,
                    transports=way, put_timeout_s=1.0)
        for i, way in enumerate((("shm",), ("tcp",)))
    ]  # fmt: skip
    for worker in workers:
        assert first_line(worker) == "up"
    for worker in workers:
        result = json.loads(first_line(worker))
        assert result["faults"] == []
        assert result["counts"].get("hit", 0) > 20, result
