"""The pool: exact cases by hand, the master's own answers, and a count by brute force."""

from __future__ import annotations

import random

import pytest

from moonpool.core import messages as m
from moonpool.core.keys import pack
from moonpool.core.master import MasterConfig, MasterState
from moonpool.sim.fleet.pool import FleetPool, PoolShape

BLOCK = 4096
NAMESPACE = b"N" * 16


def pool(objects: float, hosts: int = 1, **more: object) -> FleetPool:
    shape = PoolShape(objects * BLOCK / 1e9 / hosts, watermark_high=1.0, **more)  # type: ignore[arg-type]
    return FleetPool(shape, [1.0] * hosts, BLOCK)


def chain(number: int, length: int, common: int = 0) -> list[int]:
    return [*range(common), *(number * 1000 + i for i in range(common, length))]


def test_by_hand_least_recently_used_leaf_first() -> None:
    found = pool(6)
    assert found.put(chain(1, 3), 0) == 3
    assert found.put(chain(2, 3), 0) == 3
    assert (found.match(chain(1, 4)), found.match(chain(2, 2))) == (3, 2)
    found.release(found.hold(chain(1, 3), 0, 3))
    assert found.put(chain(3, 2), 0) == 2  # takes the last two of conversation 2
    assert (found.match(chain(1, 3)), found.match(chain(2, 3))) == (3, 1)
    assert found.evicted_objects == 2
    found.validate()


def test_what_is_leased_stays() -> None:
    found = pool(4)
    found.put(chain(1, 3), 0)
    held = found.hold(chain(1, 3), 0, 3)
    assert found.put(chain(2, 3), 0) == 1
    assert found.dropped_objects == 1
    assert found.match(chain(1, 3)) == 3
    found.release(held)
    assert found.put(chain(2, 3), 0) == 2
    assert (found.match(chain(1, 3)), found.match(chain(2, 3))) == (1, 3)
    found.validate()


def test_ends_of_prompts_are_objects_of_their_own() -> None:
    found = pool(100, object_blocks=4)
    found.put(chain(1, 6), 0)
    # Blocks 0 to 3 are an object, 4 and 5 one that ends with the prompt.
    assert found.match(chain(1, 20)) == 6
    assert found.match(chain(1, 5)) == 4
    assert found.missing(chain(1, 9)) == 5 * BLOCK
    found.put(chain(1, 9), 0)
    assert found.match(chain(1, 20)) == 9
    assert len(found) == 4
    assert found.used == 11 * BLOCK
    found.validate()


def test_a_full_host_puts_elsewhere() -> None:
    found = pool(6, hosts=2)
    found.put(chain(1, 5), 0)
    held = found.hold(chain(1, 5), 0, 5)
    assert held.hosts == {0: 3 * BLOCK, 1: 2 * BLOCK}
    found.release(held)


def test_above_the_high_watermark_it_evicts_to_the_low_one() -> None:
    shape = PoolShape(10 * BLOCK / 1e9, watermark_high=0.8, watermark_low=0.5)
    found = FleetPool(shape, [1.0], BLOCK)
    found.put(chain(1, 8), 0)
    found.tick()
    assert len(found) == 8
    found.put(chain(2, 1), 0)
    found.tick()
    assert len(found) == 5
    assert found.match(chain(2, 1)) == 1


def test_what_memory_forgets_a_disk_keeps() -> None:
    shape = PoolShape(3 * BLOCK / 1e9, ssd_gb=8 * BLOCK / 1e9, watermark_high=1.0)
    found = FleetPool(shape, [1.0], BLOCK)
    found.put(chain(1, 3), 0)
    found.put(chain(2, 2), 0)
    assert found.match(chain(1, 3)) == 3
    held = found.hold(chain(1, 3), 0, 3)
    assert held.disks == {0: 2 * BLOCK}
    assert held.hosts == {0: 3 * BLOCK}


class _Master:
    """The real master, asked as a client asks it."""

    def __init__(self, objects: int) -> None:
        self.now = 0.0
        config = MasterConfig(watermark_high=1.0, watermark_low=1.0)
        self.state = MasterState(config, 1)
        size = objects * BLOCK
        info = m.SegmentInfo("s0", "node0", "host", "addr:1", "/p", size, 2 * objects)
        mounted = self.ask(m.Mount(info))
        assert isinstance(mounted, m.Mounted)
        self.ask(m.Announce(mounted.handle, [], True))

    def ask(self, request: object) -> object:
        self.now += 0.001
        return self.state.handle(request, "node0", self.now).reply  # type: ignore[arg-type]

    def match(self, keys: list[int]) -> int:
        digests = b"".join(key.to_bytes(16, "little") for key in keys)
        found = self.ask(m.Match(NAMESPACE, digests, 16, 1))
        assert isinstance(found, m.Matched)
        return found.count

    def serve(self, keys: list[int]) -> int:
        hits = self.match(keys)
        packed: list[bytes] = [pack(key.to_bytes(16, "little"), NAMESPACE) for key in keys]
        if hits:
            self.ask(m.Hold(packed[:hits], 1, 60.0))
            self.ask(m.Release([1]))
        for at in range(hits, len(keys)):
            parent = packed[at - 1] if at else b""
            started = self.ask(m.PutStart([m.PutItem(packed[at], BLOCK, parent)]))
            assert isinstance(started, m.PutStarted)
            (grant,) = started.grants
            if grant.code:
                break
            self.ask(m.PutEnd([grant.generation], [7]))
        return hits


@pytest.mark.parametrize("seed", range(5))
def test_it_answers_as_the_master_does(seed: int) -> None:
    chance = random.Random(seed)
    master, found = _Master(64), pool(64)
    length = dict.fromkeys(range(1, 13), 6)
    for _ in range(400):
        number = chance.randint(1, 12)
        length[number] = min(20, length[number] + chance.randint(0, 2))
        keys = chain(number, length[number], common=4)
        hits = found.match(keys)
        if hits:
            found.release(found.hold(keys, 0, hits))
        found.put(keys, 0)
        assert master.serve(keys) == hits
    assert found.evicted_objects > 100
    found.validate()
