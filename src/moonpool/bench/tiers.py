"""Hit rates of a pool with and without disks, by replaying a trace through the real master.

The master's state machine and the disk's catalog run under a virtual clock; only bytes are not
moved: the disk keeps up with whoever puts. A request looks its prefix up, loads what is there, and
puts the rest, in objects of 256 tokens.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import xxhash

from moonpool.core import messages as m
from moonpool.core.keys import DIGEST_BYTES
from moonpool.core.master import MasterConfig, MasterState
from moonpool.ssd.catalog import Catalog
from moonpool.ssd.records import Record
from moonpool.workload.traces import Group, read_trace

OBJECT_TOKENS = 256
OBJECT_BYTES = 64 << 10
"""What stands for an object of 256 tokens: hit rates depend on shares alone."""
TICK_S = 0.1
TICKS_MAX = 3
"""Ticks between two requests at most: nothing happens in more."""
WAY_BYTES_MIN = 64 * OBJECT_BYTES
LEASE_S = 10.0
ASKS_MAX = 200
NAMESPACE = b"replay-namespace"
NODE = "node"


@dataclass(frozen=True, slots=True)
class Point:
    """A run: shares of the working set in memory and on disk, and what was hit, in tokens.
    ``from_disk_tokens`` were read from disk, which need not have been used."""

    trace: str
    memory_share: float
    disk_share: float
    policy: str
    input_tokens: int
    hit_tokens: int
    from_disk_tokens: int
    evicted_unsaved: int

    @property
    def hit_rate(self) -> float:
        """Return the share of input tokens that needed no computing."""
        return self.hit_tokens / self.input_tokens


@dataclass(frozen=True, slots=True)
class Step:
    """A request as the pool sees it: when, of how many tokens, the digests of its objects; and of
    which conversation, where the trace says so."""

    time_s: float
    input_tokens: int
    digests: list[bytes]
    tokens_each: int
    conversation: str = ""


def steps_of(path: Path) -> list[Step]:
    """Return the requests of a trace by time; conversations start as the trace says."""
    streams = [_steps(group) for group in read_trace(path)]
    return list(heapq.merge(*streams, key=lambda step: step.time_s))


def _steps(group: Group) -> Iterator[Step]:
    """Group blocks to objects of about OBJECT_TOKENS; an object's digest names its prefix."""
    scope, block_tokens = group.scope, group.block_tokens
    name = scope if group.conversation else ""
    stride = max(1, OBJECT_TOKENS // block_tokens)
    for request in sorted(group.requests, key=lambda each: each.time_s):
        ids = request.blocks[: request.input_tokens // block_tokens].tolist()
        digest, digests = xxhash.xxh3_128(scope.encode()).digest(), []
        for at in range(0, len(ids) - stride + 1, stride):
            part = b"".join(each.to_bytes(8, "little") for each in ids[at : at + stride])
            digest = xxhash.xxh3_128(digest + part).digest()
            digests.append(digest)
        yield Step(request.time_s, request.input_tokens, digests, stride * block_tokens, name)


def working_set(steps: list[Step]) -> int:
    """Return how many objects occur in a trace."""
    return len({digest for step in steps for digest in step.digests})


def replay(
    trace: str,
    steps: list[Step],
    objects: int,
    memory_share: float,
    disk_share: float = 0.0,
    policy: str = m.ON_EVICT,
) -> Point:
    """Replay a trace against a pool with these shares of its ``objects``."""
    pool = _Pool(int(objects * memory_share), int(objects * disk_share), policy)
    tokens = hits = from_disk = 0
    counters = pool.master.state.counters
    for step in steps:
        pool.pass_time(step.time_s)
        before = counters["promotions"]
        found = pool.request(step.digests)
        tokens += step.input_tokens
        hits += min(found * step.tokens_each, step.input_tokens)
        from_disk += (counters["promotions"] - before) * step.tokens_each
    shares = memory_share, disk_share
    return Point(trace, *shares, policy, tokens, hits, from_disk, counters["evicted_unsaved"])


class _Pool:
    """A master, and a node whose disk is a catalog."""

    def __init__(self, memory_objects: int, disk_objects: int, policy: str) -> None:
        self.master = MasterState(MasterConfig(), 1)
        self.now = 0.0
        self._clock = 0.0
        self._leases = 0
        self._pushes: list[m.Push] = []
        self._disk = 0
        self._known: dict[int, tuple[bytes, bytes]] = {}
        size = max(memory_objects, 64) * OBJECT_BYTES
        info = m.SegmentInfo("s", NODE, "h", "a", "/s", size, max(memory_objects, 64) * 2)
        self.segment = self._expect(m.Mounted, m.Mount(info)).handle
        self._ask(m.Announce(self.segment, [], True), NODE)
        self.catalog: Catalog | None = None
        if disk_objects:
            capacity = disk_objects * OBJECT_BYTES
            self.catalog = Catalog(capacity, max(OBJECT_BYTES, capacity // 64))
            ways = max(size // 4, WAY_BYTES_MIN), max(size // 16, WAY_BYTES_MIN)
            disk = m.DiskInfo(NODE, capacity, policy, *ways)
            self._disk = self._expect(m.Mounted, m.MountDisk(disk)).handle
            self._ask(m.Shelve(self._disk, []), NODE)

    def _ask(self, request: m.Request | m.Tick, peer: str) -> m.Reply | None:
        outcome = self.master.handle(request, peer, self.now)
        self._pushes += [push for _, push in outcome.pushes]
        return outcome.reply

    def _expect(self, kind: type[m.Mounted], request: m.Request) -> m.Mounted:
        reply = self._ask(request, NODE)
        assert isinstance(reply, kind), reply
        return reply

    def pass_time(self, until: float) -> None:
        """Let ticks pass up to a time; a long silence is not longer than a few of them."""
        self._clock = max(self._clock, until - TICKS_MAX * TICK_S)
        while self._clock < until:
            self._clock += TICK_S
            self.now += TICK_S
            self._ask(m.Tick(), "")
            self._work()

    def request(self, digests: list[bytes]) -> int:
        """Serve a request; return how many objects of its prefix were there."""
        packed = b"".join(digests)
        matched = self._ask(m.Match(NAMESPACE, packed, DIGEST_BYTES), "client")
        assert isinstance(matched, m.Matched)
        keys = [bytes((len(NAMESPACE),)) + NAMESPACE + each for each in digests]
        loaded = self._load(keys[: matched.count], packed[: matched.count * DIGEST_BYTES])
        self._put(keys, loaded)
        return loaded

    def _load(self, keys: list[bytes], packed: bytes) -> int:
        """Read a prefix front first, waiting for what is on disk; return how much of it came."""
        if self.catalog is not None and keys:
            self._ask(m.Prefetch(NAMESPACE, packed, DIGEST_BYTES), "client")
            self._work()
        self._leases += 1
        there: set[int] = set()
        wanted = list(range(len(keys)))
        for _ in range(ASKS_MAX):
            if not wanted:
                break
            request = m.Get([keys[i] for i in wanted], self._leases, LEASE_S)
            reply = self._ask(request, "client")
            assert isinstance(reply, m.Got)
            found = dict(zip(wanted, reply.objects, strict=True))
            there.update(i for i, where in found.items() if where.generation)
            wanted = [i for i, where in found.items() if where.retry_after_s > 0]
            self._work()
        self._ask(m.Release([self._leases]), "client")
        return next((i for i in range(len(keys)) if i not in there), len(keys))

    def _put(self, keys: list[bytes], known: int) -> None:
        for at in range(known, len(keys)):
            parent = keys[at - 1] if at else b""
            started = self._ask(m.PutStart([m.PutItem(keys[at], OBJECT_BYTES, parent)]), "client")
            assert isinstance(started, m.PutStarted)
            (grant,) = started.grants
            if grant.code == 0:
                self._known[grant.generation] = keys[at], parent
                self._ask(m.PutEnd([grant.generation], [1]), "client")
            self._work()

    # --- the node -------------------------------------------------------------------------------

    def _work(self) -> None:
        """Do what the node was told to."""
        while self._pushes:
            pushes, self._pushes = self._pushes, []
            for push in pushes:
                self._obey(push)

    def _obey(self, push: m.Push) -> None:
        if self.catalog is None:
            return
        if isinstance(push, m.Offload):
            self._offload(self.catalog, push)
        elif isinstance(push, m.Promote):
            self._promote(self.catalog, push)
        elif isinstance(push, m.TouchShelved):
            for key in push.keys:
                self.catalog.touch(key)

    def _offload(self, catalog: Catalog, push: m.Offload) -> None:
        shelved: list[m.Shelved] = []
        for generation in push.generations:
            key, parent = self._known[generation]
            found = self.master.state.index.find(key)
            if found is None or found.generation != generation:
                self._ask(m.Unshelve(self._disk, [b""], [generation], "stale"), NODE)
                continue
            place = catalog.place(OBJECT_BYTES)
            if place is None:
                self._open(catalog)
                place = catalog.place(OBJECT_BYTES)
            assert place is not None
            catalog.commit(Record(key, parent, OBJECT_BYTES, 1, generation, *place))
            shelved.append(m.Shelved(key, parent, OBJECT_BYTES, 1, generation))
        self._ask(m.Shelve(self._disk, shelved), NODE)

    def _open(self, catalog: Catalog) -> None:
        while catalog.is_full():
            victim = catalog.victim()
            assert victim is not None
            lost = catalog.forget(victim)
            keys, generations = [e.key for e in lost], [e.generation for e in lost]
            self._ask(m.Unshelve(self._disk, keys, generations, "reclaimed"), NODE)
        catalog.open_extent(catalog.take_number())

    def _promote(self, catalog: Catalog, push: m.Promote) -> None:
        for item in push.items:
            record = catalog.find(item.object.key)
            if record is None or record.generation != item.object.generation:
                self._ask(m.PutRevoke([item.generation]), NODE)
                continue
            catalog.touch(record.key)
            self._known[item.generation] = record.key, record.parent
            self._ask(m.PutEnd([item.generation], [1]), NODE)
