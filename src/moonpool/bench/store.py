"""``moonpool bench store``: the data path beside memcpy and plain sockets, in one run.

The master and the node are processes of their own; this process is the client. Each round takes
the limits and moonpool in turn, so that a busy machine slows both. Every byte read is compared
with what was put.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from moonpool.bench.cluster import Cluster
from moonpool.bench.limits import Bytes, memcpy_seconds, socket_limit
from moonpool.bench.series import Series, alternate, speed_ratio, timed
from moonpool.client.store import Store
from moonpool.transport.base import Pieces

NAMESPACE = b"moonpool-bench.."
MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Workload:
    """A batch: so many objects of so many bytes, each gathered from so many scattered pieces."""

    objects: int = 512
    object_bytes: int = 2 * MIB
    pieces: int = 61

    @property
    def nbytes(self) -> int:
        """Bytes of the whole batch."""
        return self.objects * self.object_bytes


@dataclass(frozen=True, slots=True)
class Options:
    """What to measure and how often."""

    workload: Workload = field(default_factory=Workload)
    runs: int = 5
    calls: int = 500
    blocks: int = 5000
    streams: int = 4


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the report: a figure, and what it is held against."""

    what: str
    value: float
    unit: str
    against: str = ""
    ratio: float | None = None
    wanted: str = ""
    ok: bool | None = None


def scattered(memory: Bytes, workload: Workload, seed: int) -> Pieces:
    """Return the batch's pieces, spread over ``memory`` in random order as KV blocks are."""
    even = workload.object_bytes // workload.pieces
    lengths = np.full((workload.objects, workload.pieces), even, np.uint64)
    lengths[:, -1] += np.uint64(workload.object_bytes - even * workload.pieces)
    order = np.random.default_rng(seed).permutation(workload.objects)
    # Pieces of one object lie ``objects`` pieces apart, as the layers of a block do in an engine.
    layer = np.arange(workload.pieces, dtype=np.uint64) * np.uint64(even * workload.objects)
    addresses = np.empty_like(lengths)
    addresses[:, :-1] = layer[None, :-1] + order[:, None].astype(np.uint64) * np.uint64(even)
    last = np.uint64(even * workload.objects * (workload.pieces - 1))
    addresses[:, -1] = last + order.astype(np.uint64) * lengths[:, -1]
    addresses += np.uint64(memory.ctypes.data)
    starts = np.arange(workload.objects + 1, dtype=np.int64) * workload.pieces
    return Pieces(addresses.ravel(), lengths.ravel(), starts)


def batch_keys(count: int) -> list[str | bytes]:
    """Return keys such as an engine uses: one namespace, 16-byte digests."""
    from moonpool.core.keys import pack

    return [pack(i.to_bytes(16, "big"), NAMESPACE) for i in range(count)]


class Bulk:
    """The batch workload through one store, every run verified."""

    def __init__(self, store: Store, workload: Workload) -> None:
        self.store = store
        self.workload = workload
        rng = np.random.default_rng(7)
        self.source: Bytes = np.frombuffer(rng.bytes(workload.nbytes), np.uint8).copy()
        self.target: Bytes = np.zeros(workload.nbytes, np.uint8)
        self.plain: Bytes = np.zeros(workload.nbytes, np.uint8)
        self.keys = batch_keys(workload.objects)
        store.register_buffer(self.source)
        store.register_buffer(self.target)
        self.out = scattered(self.source, workload, seed=1)
        self.back = scattered(self.target, workload, seed=1)

    def put(self) -> float:
        """Put the batch anew; return the seconds."""
        self.store.remove_batch(self.keys, force=True)
        began = time.perf_counter()
        codes = self.store.put_pieces(self.keys, self.out, timeout_s=60.0)
        seconds = time.perf_counter() - began
        if codes.any():
            raise RuntimeError(f"put failed: codes {np.unique(codes)}")
        return seconds

    def get(self) -> float:
        """Get the batch; verify every byte; return the seconds of the get alone."""
        self.target[:] = 0
        began = time.perf_counter()
        codes = self.store.get_pieces(self.keys, self.back, timeout_s=60.0)
        seconds = time.perf_counter() - began
        if codes.any():
            raise RuntimeError(f"get failed: codes {np.unique(codes)}")
        if not np.array_equal(self.source, self.target):
            raise RuntimeError("the bytes read are not the bytes put")
        return seconds

    def memcpy(self, threads: int) -> Callable[[], float]:
        """Return a step that copies the same bytes with memcpy."""
        return lambda: memcpy_seconds(self.plain, self.source, threads)


def bulk_rows(name: str, bulk: Bulk, options: Options, limit: float) -> Iterator[Row]:
    """Yield put and get beside memcpy with one and with two threads."""
    nbytes = options.workload.nbytes
    series = alternate(
        [
            ("memcpy, 1 thread", bulk.memcpy(1)),
            ("put", bulk.put),
            ("get", bulk.get),
            ("memcpy, 2 threads", bulk.memcpy(2)),
        ],
        options.runs,
    )
    one, two = series["memcpy, 1 thread"], series["memcpy, 2 threads"]
    yield Row("memcpy of the same bytes, 1 thread", one.gb_s(nbytes), "GB/s")
    yield Row("memcpy of the same bytes, 2 threads", two.gb_s(nbytes), "GB/s")
    for verb in ("put", "get"):
        yield held(f"{name} {verb}", series[verb], one, nbytes, "memcpy, 1 thread", limit)


def held(
    what: str, measured: Series, limit: Series, nbytes: int, against: str, wanted: float
) -> Row:
    """Return the row of a rate held against a limit taken in the same rounds."""
    ratio = speed_ratio(measured, limit)
    return Row(
        what,
        measured.gb_s(nbytes),
        "GB/s",
        against,
        ratio,
        f">= {wanted:.2f}",
        ratio >= wanted,
    )


def tcp_rows(bulk: Bulk, options: Options, wanted: float) -> Iterator[Row]:
    """Yield forced-TCP put and get beside plain blocking sockets."""
    nbytes = options.workload.nbytes
    with socket_limit(nbytes, 1) as one, socket_limit(nbytes, options.streams) as many:
        series = alternate(
            [
                ("one", lambda: one.seconds(bulk.source)),
                ("put", bulk.put),
                ("get", bulk.get),
                ("many", lambda: many.seconds(bulk.source)),
            ],
            options.runs,
        )
    streams = f"blocking sockets, {options.streams} streams"
    yield Row("blocking socket, 1 stream", series["one"].gb_s(nbytes), "GB/s")
    yield Row(streams, series["many"].gb_s(nbytes), "GB/s")
    for verb in ("put", "get"):
        yield held(f"TCP {verb}", series[verb], series["one"], nbytes, "blocking socket", wanted)
        ratio = speed_ratio(series[verb], series["many"])
        yield Row(f"TCP {verb}", series[verb].gb_s(nbytes), "GB/s", streams, ratio)


def lookup_rows(store: Store, options: Options) -> Iterator[Row]:
    """Yield the prefix lookup, all present and with the first block missing."""
    name = b"moonpool-lookup."
    from moonpool.core.keys import pack

    digests = [i.to_bytes(16, "big") for i in range(options.blocks)]
    keys: list[str | bytes] = [pack(digest, name) for digest in digests]
    store.put_batch(keys, [b"x"] * len(keys))
    packed = b"".join(digests)
    if store.match_digests(name, packed) != options.blocks:
        raise RuntimeError("the prefix that was put is not found")
    full = timed(lambda: store.match_digests(name, packed), options.calls)
    none = timed(lambda: store.match_digests(b"moonpool-absent.", packed), options.calls)
    yield latency(f"prefix lookup, {options.blocks} blocks, all present", full, 2000)
    yield latency("prefix lookup, first block missing", none, 200)


def small_rows(store: Store, options: Options) -> Iterator[Row]:
    """Yield put and get of 4 KiB in the other process's segment."""
    value = bytes(range(256)) * 16
    room = np.zeros(4096, np.uint8)
    numbers = iter(range(10**9))
    put = timed(lambda: store.put(f"small-{next(numbers)}", value), options.calls)
    get = timed(lambda: store.get_into("small-0", room), options.calls)
    if room.tobytes() != value:
        raise RuntimeError("the bytes read are not the bytes put")
    yield latency("put 4 KiB, other process's segment", put, 150)
    yield latency("get 4 KiB, other process's segment", get, 150)


def latency(what: str, series: Series, wanted_us: float) -> Row:
    """Return the row of a median latency with its bound."""
    p50_us = series.median_s * 1e6
    return Row(what, p50_us, "us p50", "", None, f"<= {wanted_us:.0f}", p50_us <= wanted_us)


@contextmanager
def connected(cluster: Cluster, *transports: str) -> Iterator[Store]:
    """Connect a store to the cluster for the length of a ``with`` block."""
    store = Store.connect(cluster.master_address, transports=transports, put_timeout_s=60.0)
    try:
        yield store
    finally:
        store.close()


def measure(options: Options) -> Iterator[Row]:
    """Start a master and a node, measure everything, yield the report's rows as they come."""
    with Cluster.start(pool_bytes=3 * options.workload.nbytes // 2 + 256 * MIB) as cluster:
        with connected(cluster, "shm", "tcp") as store:
            yield from small_rows(store, options)
            yield from lookup_rows(store, options)
            store.remove_all(force=True)
            yield from bulk_rows("shared memory", Bulk(store, options.workload), options, 0.60)
        with connected(cluster, "tcp") as store:
            yield from tcp_rows(Bulk(store, options.workload), options, 0.70)
