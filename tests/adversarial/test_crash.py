"""Processes die at any moment: committed objects stay, others are gone, bytes are right."""

import gc
import random
import re
import signal
import time
import warnings
from pathlib import Path

import pytest

from moonpool import Store
from moonpool.core.keys import pack
from moonpool.errors import MoonpoolError
from tests.adversarial.conftest import MakeCluster
from tests.adversarial.harness import Cluster, eventually, first_line
from tests.adversarial.values import MIB, fault_in, value_of


def used(store: Store) -> int:
    """Return the bytes that are not free."""
    status = store.status()
    return sum(s.used_bytes + s.pending_bytes for s in status.segments) + status.puts_in_progress


def fill_whole(store: Store, total: int) -> None:
    """Show that nine tenths of the pool can be had at once."""
    store.remove_all(force=True)
    eventually(lambda: used(store) == 0, 8, f"empty after remove_all, {store.status()}")
    count = int(total * 0.9) // MIB
    keys = [f"fill-{i}" for i in range(count)]
    for key in keys:
        assert store.put(key, value_of(key, 0, MIB - 64)) is True
    assert all(store.exists_batch(keys)), store.status()
    store.remove_all(force=True)


def faults(store: Store, keys: list[str], size: int | None = None) -> list[str]:
    """Return what is wrong with the keys that are there."""
    values = [(key, store.get_batch([key])[0]) for key in keys]
    return [f for key, value in values if value is not None and (f := fault_in(key, value, size))]


def get_or_miss(store: Store, key: object) -> bytes | None:
    """Return the bytes, or None if the pool says by a typed error that it has none."""
    try:
        return store.get(key)  # type: ignore[arg-type]
    except MoonpoolError:
        return None


def data_bytes(store: Store) -> int:
    """Return the pool's space."""
    return sum(s.info.data_bytes for s in store.status().segments)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_sigkill_of_clients_in_the_middle_of_large_puts(
    frail: Cluster, tmp_path: Path, transport: str
) -> None:
    store, chance = frail.stores[0], random.Random(3)
    store.remove_all(force=True)
    for turn in range(3):
        prefix, log = f"kill-{transport}-{turn}", tmp_path / f"{turn}.log"
        children = [
            frail.worker(
                "put_loop",
                prefix=f"{prefix}-{i}",
                size=4 * MIB,
                count=4,
                rounds=1000,
                log=str(log),
                transports=[transport],
            )
            for i in range(2)
        ]
        for child in children:
            assert first_line(child) == "up"
        for child in children:
            time.sleep(chance.uniform(0.003, 0.06))
            child.kill()
            child.wait()
        keys = [f"{prefix}-{i}-{n}" for i in range(2) for n in range(4)]
        assert not faults(store, keys, 4 * MIB)
        put = [line for line in log.read_text().splitlines() if not line.startswith("!")]
        assert all(store.exists_batch(put)), "a put that returned is lost"
        store.remove_all(force=True)
    fill_whole(store, data_bytes(store))


def test_sigstopped_writers_do_not_scribble_on_reused_space(frail: Cluster, tmp_path: Path) -> None:
    store, chance = frail.stores[0], random.Random(4)
    store.remove_all(force=True)
    children = [
        frail.worker(
            "put_loop",
            prefix=f"stop-{i}",
            size=5 * MIB,
            count=4,
            rounds=10_000,
            log=str(tmp_path / f"stop-{i}"),
            transports=[transport],
        )
        for i, transport in enumerate(("shm", "shm", "tcp"))
    ]
    for child in children:
        assert first_line(child) == "up"
    keys = [f"other-{i}" for i in range(400)]
    for turn in range(2):
        for child in children:
            time.sleep(chance.uniform(0.0, 0.05))
            child.send_signal(signal.SIGSTOP)
        store.remove_all(force=True)
        until, at = time.monotonic() + 1.8, 0
        while time.monotonic() < until:
            key = keys[(at := at + 1) % len(keys)]
            value = value_of(key, turn, 900_000 + at)
            store.remove_batch([key])
            store.put(key, value)
        for child in children:
            child.send_signal(signal.SIGCONT)
        for _ in range(4):
            time.sleep(0.1)
            assert not faults_of_own_size(store)
    for child in children:
        child.kill()
        child.wait()
    assert not faults_of_own_size(store)
    fill_whole(store, data_bytes(store))


def faults_of_own_size(store: Store) -> list[str]:
    """Return what is wrong with any object of the pool, taking its size as it is."""
    found = []
    for info in store.list():
        key = info.key[1:].decode()
        value = get_or_miss(store, key)
        if value is not None and (fault := fault_in(key, value, len(value))):
            found.append(fault)
    return found


def fill_some(store: Store, prefix: str) -> dict[str, bytes]:
    """Put objects of many sizes and return them."""
    sizes = [1, 4095, 4096, 4097, 100, 70_000, 300_001, MIB + 1] * 4
    values = {f"{prefix}-{i}": value_of(f"{prefix}-{i}", 0, size) for i, size in enumerate(sizes)}
    assert list(store.put_batch(list(values), list(values.values()))) == [0] * len(values)
    return values


def wait_for(store: Store, values: dict[str, bytes], within_s: float = 10.0) -> None:
    """Wait until all objects are there, and check them."""

    def there() -> bool:
        try:
            return all(store.exists_batch(list(values)))
        except MoonpoolError:
            return False

    eventually(there, within_s, "all committed objects are back")
    assert list(store.get_batch(list(values))) == list(values.values())


def test_sigkilled_node_is_missed_at_once_and_brings_its_objects_back(frail: Cluster) -> None:
    store, node = frail.stores[0], frail.nodes["frail"]
    store.remove_all(force=True)
    values = fill_some(store, "node")
    long_keys = {pack(b"\xff" * 4000 + bytes([i])): bytes([i]) * 4096 for i in range(3)}
    store.put_batch(list(long_keys), list(long_keys.values()))
    tcp = frail.connect(transports=("tcp",))
    assert list(tcp.get_batch(list(values))) == list(values.values())
    node.end()
    start = time.monotonic()
    for key in values:
        assert get_or_miss(store, key) in (None, values[key])
    eventually(lambda: not any(store.exists_batch(list(values))), 3, "no hits of a dead node")
    assert time.monotonic() - start < 5
    assert store.match_prefix(list(values)) == 0
    assert list(store.get_batch(list(values))) == [None] * len(values)
    node.start()
    wait_for(store, values)
    assert [store.get(key) for key in long_keys] == list(long_keys.values())
    assert list(tcp.get_batch(list(values))) == list(values.values())
    assert store.put("new", b"after") is True


def test_sigkilled_master_comes_back_with_all_objects(frail: Cluster) -> None:
    store = frail.stores[0]
    store.remove_all(force=True)
    values = fill_some(store, "master")
    frail.master.end()
    with pytest.raises(MoonpoolError):
        Store.connect(frail.address, timeout_s=0.3)
    frail.start_master()
    wait_for(store, values)
    assert store.put("new", b"after") is True
    assert frail.nodes["frail"].alive


def test_master_and_node_killed_again_and_again(frail: Cluster) -> None:
    store = frail.stores[0]
    values = fill_some(store, "again")
    for _ in range(2):
        frail.nodes["frail"].end()
        frail.master.end()
        frail.start_master()
        frail.nodes["frail"].start()
    wait_for(store, values)
    store.remove_batch(list(values)[::2])
    time.sleep(0.5)  # what the node has not heard of when it dies may come back
    frail.nodes["frail"].end()
    frail.nodes["frail"].start()
    wait_for(store, dict(list(values.items())[1::2]))
    gone = list(values)[::2]
    assert not any(store.exists_batch(gone)), "removed objects came back with the node"


def test_last_value_of_a_key_is_the_one_that_comes_back(frail: Cluster) -> None:
    store, node = frail.stores[0], frail.nodes["frail"]
    keys = [f"last-{i}" for i in range(30)]
    for nonce in range(3):
        store.remove_batch(keys)
        store.put_batch(keys, [value_of(key, nonce, 20_000) for key in keys])
    node.end()
    node.start()
    wait_for(store, {key: value_of(key, 2, 20_000) for key in keys})


def test_node_that_returns_does_not_replace_newer_values(make_cluster: MakeCluster) -> None:
    cluster = make_cluster([("one", "16MB"), ("two", "16MB")])
    store = cluster.stores[0]
    keys = [f"stale-{i}" for i in range(40)]
    store.put_batch(keys, [value_of(key, 0, 9000) for key in keys])
    cluster.nodes["one"].end()
    eventually(lambda: len(store.status().segments) == 1, 5, "the dead node's segment is gone")
    lost = [key for key, there in zip(keys, store.exists_batch(keys), strict=True) if not there]
    assert 0 < len(lost) < 40, "both nodes are used"
    assert list(store.put_batch(lost, [value_of(key, 1, 9500) for key in lost])) == [0] * len(lost)
    cluster.nodes["one"].start()
    eventually(lambda: cluster.ready_nodes() == 2, 10, "the node is back")
    want = [value_of(k, 1, 9500) if k in lost else value_of(k, 0, 9000) for k in keys]
    for way in (store, cluster.connect(transports=("tcp",))):
        assert list(way.get_batch(keys)) == want


def test_lost_connections_are_closed_and_not_left_to_the_collector(
    make_cluster: MakeCluster,
) -> None:
    cluster = make_cluster([("a", "16MB")])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        store = Store.connect(cluster.address, timeout_s=1.0)
        store.put("k", b"x")
        store.get("k")
        cluster.master.end()
        with pytest.raises(MoonpoolError):
            store.get("k")
        cluster.start_master()
        wait_for(store, {"k": b"x"})
        cluster.nodes["a"].end()
        assert get_or_miss(store, "k") is None
        cluster.nodes["a"].start()
        wait_for(store, {"k": b"x"})
        store.close()
        time.sleep(0.2)
        gc.collect()
    assert [str(w.message) for w in caught if w.category is ResourceWarning] == []


def test_sigkill_of_all_at_once_in_the_middle_of_puts(frail: Cluster, tmp_path: Path) -> None:
    store, log = frail.stores[0], tmp_path / "log"
    store.remove_all(force=True)
    values = fill_some(store, "all")
    child = frail.worker(
        "put_loop", prefix="kill-all", size=3 * MIB, count=11, log=str(log), transports=["shm"]
    )
    assert first_line(child) == "up"
    time.sleep(0.02)
    for end in (frail.nodes["frail"].end, frail.master.end, child.kill):
        end()
    child.wait()
    frail.nodes["frail"].spawn()
    frail.start_master()
    frail.nodes["frail"].wait_ready()
    wait_for(store, values)
    noted = [line for line in log.read_text().splitlines() if not line.startswith("!")]
    assert all(store.exists_batch(noted)), "a put that returned is lost"
    assert not faults(store, [f"kill-all-{i}" for i in range(11)], 3 * MIB)
    fill_whole(store, data_bytes(store))


def test_clean_stop_of_a_node_leaves_nothing_and_start_is_empty(frail: Cluster) -> None:
    store, node = frail.stores[0], frail.nodes["frail"]
    values = fill_some(store, "clean")
    assert node.end(signal.SIGTERM) == 0, node.tail()
    assert frail.segment_files() == []
    eventually(lambda: not any(store.exists_batch(list(values))), 3, "objects gone")
    node.start()
    eventually(lambda: frail.ready_nodes() == 1, 10, "node is back")
    assert not any(store.exists_batch(list(values)))
    fill_whole(store, data_bytes(store))


def test_replicas_outlive_one_of_two_nodes(make_cluster: MakeCluster) -> None:
    cluster = make_cluster([("one", "32MB")])
    # A directory of its own makes a host of its own.
    cluster.node("two", "32MB", segment_dir=cluster.segments / "two").start()
    eventually(lambda: cluster.ready_nodes() == 2, 10, "both nodes are there")
    store = cluster.stores[0]
    values = {f"r{i}": value_of(f"r{i}", 0, 200_000 + i) for i in range(20)}
    for key, value in values.items():
        assert store.put(key, value, replicas=2)
    assert all(len(info.segments) == 2 for info in store.list())
    store.put_batch(["s1", "s2", "s3", "s4"], [b"x" * 100_000] * 4)
    cluster.nodes["one"].end()
    for _ in range(3):
        assert list(store.get_batch(list(values))) == list(values.values())
    eventually(lambda: len(store.status().segments) == 1, 3, "the dead node's segment is gone")
    assert [store.get(key) for key in values] == list(values.values())
    cluster.nodes["one"].start()
    eventually(lambda: cluster.ready_nodes() == 2, 10, "the node is back")
    cluster.nodes["two"].end()
    eventually(lambda: len(store.status().segments) == 1, 3, "the other node's segment is gone")
    assert list(store.get_batch(list(values))) == list(values.values())


def flip(path: Path, places: list[int]) -> None:
    """Invert single bytes of a file."""
    with path.open("r+b") as file:
        for place in places:
            file.seek(place)
            byte = file.read(1)
            file.seek(place)
            file.write(bytes([byte[0] ^ 0xFF]))


def damage(kind: str, path: Path, first_payload: bytes, chance: random.Random) -> None:
    """Damage a segment file in the way named."""
    content = path.read_bytes()
    payload = content.find(first_payload)
    data = payload - payload % 4096
    keys = [found.start() for found in re.finditer(b"\x00damage-", content[:data])]
    assert payload > 0
    assert keys, "no keys in the table"
    if kind == "payload":
        flip(path, [chance.randrange(data, min(data + 8 * MIB, len(content))) for _ in range(4000)])
    elif kind == "table":
        flip(path, [chance.choice(keys) + chance.randrange(-140, 100) for _ in range(20)])
    elif kind == "owners":
        flip(path, [chance.randrange(4096, 4096 + 8 * 1000) for _ in range(300)])
    elif kind == "header":
        flip(path, [chance.randrange(0, 200)])
    elif kind == "swapped entries":
        first, second = keys[0] & ~0xFF, keys[-1] & ~0xFF
        swapped = bytearray(content)
        swapped[first : first + 256] = content[second : second + 256]
        swapped[second : second + 256] = content[first : first + 256]
        path.write_bytes(swapped)
    elif kind == "truncated":
        path.write_bytes(content[: data + 5 * MIB // 2])
    elif kind == "truncated in the table":
        path.write_bytes(content[: keys[len(keys) // 2]])
    else:
        path.write_bytes(
            {"empty": b"", "garbage": chance.randbytes(MIB), "zeros": bytes(MIB)}[kind]
        )


KINDS = (
    "payload", "table", "owners", "header", "swapped entries", "truncated",
    "truncated in the table", "empty", "garbage", "zeros",
)  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_segment_file_gives_misses_and_never_wrong_bytes(frail: Cluster, kind: str) -> None:
    store, node = frail.stores[0], frail.nodes["frail"]
    store.remove_all(force=True)
    values = fill_some(store, "damage")
    node.end()
    (path,) = frail.segment_files()
    damage(kind, path, values["damage-5"], random.Random(kind))
    node.start()
    eventually(lambda: frail.ready_nodes() == 1, 10, "the node is back")
    for way in (store, frail.connect(transports=("tcp",))):
        for key, value in values.items():
            assert get_or_miss(way, key) in (None, value), f"wrong bytes of {key}"
    for info in store.list():
        assert info.key[1:].decode() in values
    fill_whole(store, data_bytes(store))
