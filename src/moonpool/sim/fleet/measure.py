"""What the real master and the real router's index take: measured here and now, for simulations.

The master is its state machine with the wire around it: a message is decoded, served, and the
answer encoded. What the event loop and the socket take is added as ``LOOP_S``.
"""

from __future__ import annotations

import gc
import tracemalloc
from time import process_time

import numpy as np

from moonpool.core import messages as m
from moonpool.core.keys import pack
from moonpool.core.master import MasterConfig, MasterState
from moonpool.protocol.codec import decode_request, encode
from moonpool.protocol.framing import HEADER_BYTES
from moonpool.router.index import PrefixIndex
from moonpool.sim.fleet.master import Prices

LOOP_S = 10e-6
"""Of a message: half of a round trip of 64 bytes between two uvloop programs, 19 us."""
NAMESPACE = b"N" * 16
PAGE = 4096
MANY, FEW = 64, 1
ROUNDS = 100
OBJECTS = 30_000
SEGMENTS = 8
EVENT_BLOCKS = 200


class _Master:
    """A master with a pool of so many small objects, asked over its wire."""

    def __init__(self, objects: int) -> None:
        self.state = MasterState(MasterConfig(watermark_high=1.0, watermark_low=1.0), 1)
        self.now_s = 0.0
        each = objects // SEGMENTS
        for number in range(SEGMENTS):
            node = f"n{number}"
            info = m.SegmentInfo("s", node, f"h{number}", "a:1", "/p", each * PAGE, 2 * each)
            mounted = self.state.handle(m.Mount(info), node, 0.0).reply
            assert isinstance(mounted, m.Mounted), mounted
            self.state.handle(m.Announce(mounted.handle, [], True), node, 0.0)

    def __len__(self) -> int:
        return self.state.state.index.count

    def timed(self, message: m.Request) -> tuple[float, m.Reply | None]:
        """Return the seconds that a message takes, and its answer."""
        frame = encode(1, message)
        self.now_s += 1e-4
        began = process_time()
        number, asked = decode_request(memoryview(frame)[HEADER_BYTES:])
        reply = self.state.handle(asked, "client", self.now_s).reply
        if reply is not None:
            encode(number, reply)
        return process_time() - began, reply


def _names(chain: int, count: int) -> bytes:
    found = np.empty((count, 2), "<u8")
    found[:, 0], found[:, 1] = chain, np.arange(count)
    return found.tobytes()


def _packed(names: bytes) -> list[bytes]:
    return [pack(names[at : at + 16], NAMESPACE) for at in range(0, len(names), 16)]


def _put(master: _Master, chain: int, count: int) -> tuple[float, float]:
    keys = _packed(_names(chain, count))
    items = [m.PutItem(k, PAGE, keys[at - 1] if at else b"") for at, k in enumerate(keys)]
    started_s, reply = master.timed(m.PutStart(items))
    assert isinstance(reply, m.PutStarted), reply
    generations = [grant.generation for grant in reply.grants]
    ended_s, reply = master.timed(m.PutEnd(generations, [7] * count))
    assert isinstance(reply, m.Codes), reply
    assert not any(reply.codes), reply
    return started_s, ended_s


def _read(master: _Master, chain: int, count: int) -> dict[str, float]:
    names = _names(chain, count)
    keys = _packed(names)
    match_s, reply = master.timed(m.Match(NAMESPACE, names, 16, 1))
    assert isinstance(reply, m.Matched), reply
    assert reply.count == count, "all of them are there"
    took = {
        "match": match_s,
        "hold": master.timed(m.Hold(keys, chain, 60.0))[0],
        "get": master.timed(m.Get(keys, chain, 60.0))[0],
    }
    took["release"] = master.timed(m.Release([chain]))[0]
    return took


def prices() -> Prices:
    """Measure a master's messages, of 1 and 64 objects, with a full pool: a put evicts as much as
    it brings. Takes some seconds of one core."""
    master = _Master(OBJECTS)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    chains = OBJECTS // MANY
    for chain in range(chains):
        _put(master, chain, MANY)
    gc.collect()
    object_bytes = (tracemalloc.get_traced_memory()[0] - before) / len(master)
    tracemalloc.stop()
    kinds = Prices().message
    took = {count: {kind: list[float]() for kind in kinds} for count in (MANY, FEW)}
    for number in range(ROUNDS):
        for count, found in took.items():
            # Of the younger half: of the others some have made room for them.
            chain = chains - 1 - number * 7919 % (chains // 2)
            for kind, seconds in _read(master, chain, count).items():
                found[kind].append(seconds)
    for number in range(ROUNDS):
        for count, found in took.items():
            started, ended = _put(master, OBJECTS + count * ROUNDS + number, count)
            found["put_start"].append(started)
            found["put_end"].append(ended)
    return _fitted(took, object_bytes)


def _fitted(took: dict[int, dict[str, list[float]]], object_bytes: float) -> Prices:
    message, item = {}, {}
    for kind in took[MANY]:
        many, few = (float(np.median(took[count][kind])) for count in (MANY, FEW))
        item[kind] = max(0.0, (many - few) / (MANY - FEW))
        message[kind] = LOOP_S + max(0.0, few - item[kind])
    return Prices(message, item, object_bytes)


def event_s() -> float:
    """Measure what a block that comes or goes takes in the router's index, in seconds."""
    index, found = PrefixIndex(), []
    for number in range(ROUNDS):
        keys = [*range(number * EVENT_BLOCKS, (number + 1) * EVENT_BLOCKS)]
        began = process_time()
        index.add(number % 8, keys)
        if number >= ROUNDS // 2:
            index.remove(number % 8, keys)
        blocks = EVENT_BLOCKS * (1 + (number >= ROUNDS // 2))
        found.append((process_time() - began) / blocks)
    return float(np.mean(found))
