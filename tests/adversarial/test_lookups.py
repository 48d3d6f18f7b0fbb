"""Lookups change nothing, leases hold, and eviction takes leaves first."""

import random
import threading
import time

import pytest

from moonpool import Store
from moonpool.errors import InvalidArgumentError, LeasedError, MoonpoolError, ValueTooLargeError
from tests.adversarial.conftest import MakeCluster
from tests.adversarial.harness import Cluster, eventually, first_line
from tests.adversarial.values import MIB, value_of

FILLER = value_of("filler", 0, MIB - 4096)


def press(store: Store, name: str, mib: int) -> None:
    """Put so many MiB of objects that nobody holds."""
    for i in range(mib):
        store.put(f"press-{name}-{i}", FILLER)


def test_probing_does_not_stop_eviction(pool: Store) -> None:
    cold = [f"cold-{i}" for i in range(10)]
    pool.put_batch(cold, [FILLER] * 10)
    before = pool.stat("cold-3")
    stop = threading.Event()

    def probe() -> None:
        while not stop.is_set():
            pool.exists_batch(cold)
            pool.exists("cold-0")
            pool.match_prefix(cold)
            for info in pool.list("cold"):
                assert info.key
            for key in cold[:2]:
                try:
                    pool.stat(key)
                    pool.size(key)
                except MoonpoolError:
                    return

    prober = threading.Thread(target=probe)
    prober.start()
    time.sleep(0.1)
    after = pool.stat("cold-3")
    press(pool, "probe", 66)
    stop.set()
    prober.join()
    assert after.used_s_ago > before.used_s_ago, "a lookup counted as a use"
    assert (after.leases, before.leases) == (0, 0)
    assert pool.exists_batch(cold) == [False] * 10


def test_reading_keeps_an_object_where_looking_does_not(pool: Store) -> None:
    pool.put("read", FILLER)
    pool.put("looked", FILLER)
    for i in range(60):
        pool.put(f"lru-{i}", FILLER)
        pool.get("read")
        pool.exists("looked")
    assert pool.exists("read")
    assert not pool.exists("looked")


def test_held_prefix_outlives_pressure_and_goes_once_released(pool: Store) -> None:
    held = [f"held-{i}" for i in range(8)]
    for i, key in enumerate(held):
        pool.put(key, FILLER, parent=held[i - 1] if i else None)
    lease = pool.hold(held, 30.0)
    assert lease.count == 8
    press(pool, "held", 66)
    assert pool.match_prefix(held) == 8
    with pytest.raises(LeasedError):
        pool.remove(held[0])
    assert pool.get(held[7]) == FILLER
    pool.release(lease)
    pool.release(lease)
    press(pool, "released", 66)
    assert pool.exists_batch(held) == [False] * 8


def test_lease_ends_by_itself(pool: Store) -> None:
    pool.put("brief", FILLER)
    pool.hold(["brief"], 0.3)
    time.sleep(0.5)
    press(pool, "brief", 66)
    assert not pool.exists("brief")


def test_hold_covers_leading_keys_only(pool: Store) -> None:
    pool.put_batch(["a", "b", "d"], [FILLER] * 3)
    lease = pool.hold(["a", "b", "c", "d"], 30.0)
    assert lease.count == 2
    press(pool, "leading", 66)
    assert pool.exists_batch(["a", "b", "d"]) == [True, True, False]
    pool.release(lease)
    assert pool.hold(["nothing"], 5.0).count == 0
    assert pool.hold([], 5.0).count == 0


def test_two_leases_on_one_object_are_both_needed_to_end(pool: Store) -> None:
    pool.put("both", FILLER)
    first, second = pool.hold(["both"], 30.0), pool.hold(["both"], 30.0)
    pool.release(first)
    with pytest.raises(LeasedError):
        pool.remove("both")
    pool.release(second)
    eventually(lambda: pool.stat("both").leases == 0, 2, "released")
    pool.remove("both")


@pytest.mark.parametrize("ttl_s", [float("nan"), float("inf"), -1.0, 0.0, 1e300])
def test_absurd_lease_times_are_typed_errors_or_bounded(pool: Store, ttl_s: float) -> None:
    pool.put("absurd", b"x")
    try:
        lease = pool.hold(["absurd"], ttl_s)
    except (MoonpoolError, ValueError):
        return
    pool.release(lease)
    eventually(lambda: pool.stat("absurd").leases == 0, 2, "released")
    assert ttl_s == ttl_s, "NaN was taken for a time"


def test_one_client_cannot_end_another_ones_lease(shared: Cluster) -> None:
    first, second = shared.connect(), shared.connect()
    first.remove_all(force=True)
    first.put("mine", FILLER)
    lease = first.hold(["mine"], 30.0)
    for i in range(lease.id - 3, lease.id + 4):
        if i >= 0:
            second.release(i)
    time.sleep(0.1)
    assert first.stat("mine").leases == 1
    first.release(lease)
    eventually(lambda: second.stat("mine").leases == 0, 2, "released")


def test_leases_of_a_killed_client_end(shared: Cluster) -> None:
    store = shared.stores[0]
    store.remove_all(force=True)
    store.put("orphan", FILLER)
    child = shared.worker("hold", keys=["orphan"], ttl_s=60.0)
    assert first_line(child) == "1"
    with pytest.raises(LeasedError):
        store.remove("orphan")
    child.kill()
    child.wait()
    eventually(lambda: store.stat("orphan").leases == 0, 3, "lease of a dead client ended")
    store.remove("orphan")


def test_leases_of_a_closed_store_end(shared: Cluster) -> None:
    store, other = shared.stores[0], shared.connect()
    store.put("closed", FILLER)
    assert other.hold(["closed"], 60.0).count == 1
    other.close()
    eventually(lambda: store.stat("closed").leases == 0, 3, "lease of a closed store ended")
    store.remove("closed")


def orphans(store: Store) -> list[bytes]:
    """Return the objects whose parent was put and is gone."""
    infos = {info.key: info for info in store.list("chain")}
    return [info.key for info in infos.values() if info.parent and info.parent not in infos]


@pytest.mark.parametrize("sizes", ["same", "mixed"])
def test_eviction_takes_leaves_before_their_parents(pool: Store, sizes: str) -> None:
    chance = random.Random(9)
    chains = [[f"chain-{c}-{i}" for i in range(12)] for c in range(14)]
    for i in range(12):
        for chain in chance.sample(chains, len(chains)):
            size = 400_000 if sizes == "same" else chance.choice((4096, 60_000, 300_000, 900_000))
            parent = chain[i - 1] if i else None
            if parent is None or pool.exists(parent):
                pool.put(chain[i], value_of(chain[i], 0, size), parent=parent)
                if parent and not pool.exists(parent):  # it went just before the put began
                    pool.remove_batch([chain[i]])
            if chance.random() < 0.3:
                pool.get_batch([chance.choice(chance.choice(chains)) for _ in range(4)])
        assert not orphans(pool)
    assert len(list(pool.list("chain"))) > 30
    for turn in range(4):
        press(pool, f"{sizes}-{turn}", 10)
        assert not orphans(pool)
    for size in (5000, 200_000, 3 * MIB):
        for i in range(20):
            pool.put(f"odd-{size}-{i}", value_of("odd", 0, size))
        assert not orphans(pool)


def test_held_leaf_keeps_its_whole_chain(pool: Store) -> None:
    chain = [f"chain-{i}" for i in range(10)]
    for i, key in enumerate(chain):
        pool.put(key, FILLER, parent=chain[i - 1] if i else None)
    lease = pool.hold([chain[-1]], 30.0)
    press(pool, "leaf", 66)
    assert pool.match_prefix(chain) == 10
    pool.release(lease)


def test_object_that_is_its_own_parent_is_taken_or_refused_as_such(pool: Store) -> None:
    try:
        pool.put("self", FILLER, parent="self")
    except ValueTooLargeError:
        pytest.fail("the size is not what is wrong")
    except InvalidArgumentError:
        assert not pool.exists("self")
    press(pool, "self", 66)
    assert not pool.exists("self")


def test_cycles_of_parents_do_not_pin_the_pool(pool: Store) -> None:
    for i in range(0, 42, 3):
        for child, parent in ((0, 1), (1, 2), (2, 0)):
            pool.put(f"ring-{i + child}", FILLER, parent=f"ring-{i + parent}")
    press(pool, "ring", 40)
    assert pool.get("press-ring-39") == FILLER


def test_a_chain_that_is_put_backwards_is_evicted_leaf_first(make_cluster: MakeCluster) -> None:
    store = make_cluster([("a", "16MB")]).stores[0]
    chain = [f"chain-{i}" for i in range(12)]
    for i in reversed(range(12)):
        store.put(chain[i], FILLER, parent=chain[i - 1] if i else None)
    for i in range(12):
        store.put(f"more-{i}", FILLER)
        alive = store.exists_batch(chain)
        assert alive == sorted(alive, reverse=True), alive
