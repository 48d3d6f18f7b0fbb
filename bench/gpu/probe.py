# ruff: noqa: T201
"""What this machine's GPU, its bus and moonpool's way there can do. Needs no PyTorch, no vLLM.

    python bench/gpu/probe.py [--gib 4] [--json FILE]

Each stage prints a line of JSON and fails by itself; a table follows. Bytes are checked.
"""

from __future__ import annotations

import argparse
import itertools
import json
import mmap
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src"))

from moonpool.gpu import CudaCopier, ipc, open_driver
from moonpool.gpu.base import Driver
from moonpool.transport import copy, native
from moonpool.transport.base import Pieces

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
ROWS: list[dict[str, Any]] = []


def report(stage: str, **values: Any) -> None:
    """Print a result now."""
    row = {"stage": stage, **values}
    ROWS.append(row)
    print(json.dumps(row), flush=True)


class Stage:
    """Let a failure end this stage only."""

    def __init__(self, name: str) -> None:
        self.name, self.started = name, 0.0

    def __enter__(self) -> None:
        self.started = time.perf_counter()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> bool:
        keep = error is None or isinstance(error, KeyboardInterrupt)
        if not keep:
            text = "".join(traceback.format_exception(kind, error, where))[-600:]
            report(self.name, error=f"{type(error).__name__}: {error}", where=text)
        print(f"# {self.name}: {time.perf_counter() - self.started:.1f} s", flush=True)
        return not keep


def rate(nbytes: int, call: Callable[[], object], runs: int = 5) -> dict[str, float]:
    """Return the median rate of some runs, and the best."""
    call()
    spent = []
    for _ in range(runs):
        started = time.perf_counter()
        call()
        spent.append(time.perf_counter() - started)
    return {
        "GBps": round(nbytes / statistics.median(spent) / 1e9, 2),
        "best_GBps": round(nbytes / min(spent) / 1e9, 2),
        "ms": round(statistics.median(spent) * 1e3, 3),
    }


class Mapped:
    """A mapped file in shared memory, as a node's segment is."""

    def __init__(self, path: Path, nbytes: int, *, create: bool) -> None:
        with path.open("w+b" if create else "r+b") as file:
            if create:
                file.truncate(nbytes)
            self.mapping = mmap.mmap(file.fileno(), nbytes)
        self.view = np.frombuffer(self.mapping, np.uint8)
        self.address = int(self.view.ctypes.data)
        self.nbytes = nbytes


class Blocks:
    """Device memory as ``count`` blocks of ``size`` bytes in random order: one object each of
    ``per_object`` blocks."""

    def __init__(self, base: int, count: int, size: int, object_bytes: int) -> None:
        order = np.random.default_rng(7).permutation(count).astype(np.uint64)
        per = max(object_bytes // size, 1)
        starts = np.arange(0, count + 1, per, dtype=np.int64)
        self.pieces = Pieces(
            order * np.uint64(size) + np.uint64(base), np.full(count, size, np.uint64), starts
        )
        self.object_bytes = per * size

    def hosts(self, base: int) -> np.ndarray[Any, np.dtype[np.uint64]]:
        """Return host addresses of the objects, one behind the other."""
        count = len(self.pieces)
        return np.arange(count, dtype=np.uint64) * np.uint64(self.object_bytes) + np.uint64(base)


def touch(gib: float, directory: Path) -> None:
    """Touch fresh shared memory with several threads."""
    nbytes = int(gib * GIB) // 8 * 8
    for threads in (1, 4, 8):
        path = directory / f"touch{threads}"
        mapped = Mapped(path, nbytes, create=True)
        part = nbytes // threads // 4096 * 4096
        with ThreadPoolExecutor(threads) as pool:
            started = time.perf_counter()
            starts = range(mapped.address, mapped.address + threads * part, part)
            codes = list(pool.map(native.populate, starts, [part] * threads))
            spent = time.perf_counter() - started
        report("touch", threads=threads, GBps=round(part * threads / spent / 1e9, 2), codes=codes)
        path.unlink()


def register(driver: Driver, mapped: Mapped, touched: bool) -> None:
    """Register a mapping in chunks of several sizes."""
    for chunk in (64 * MIB, 256 * MIB, 1024 * MIB):
        started = time.perf_counter()
        at = list(range(0, mapped.nbytes - chunk + 1, chunk))
        for offset in at:
            driver.host_register(mapped.address + offset, chunk)
        spent = time.perf_counter() - started
        started = time.perf_counter()
        for offset in at:
            driver.host_unregister(mapped.address + offset)
        back = time.perf_counter() - started
        nbytes = len(at) * chunk
        report(
            "register",
            chunk_MiB=chunk // MIB,
            touched=touched,
            GBps=round(nbytes / spent / 1e9, 2),
            unregister_GBps=round(nbytes / back / 1e9, 2),
        )
        touched = True


def plain(driver: Driver, device: int, host: int, nbytes: int) -> None:
    """One large copy each way from memory that the driver allocated or that was registered."""
    stream, event = driver.stream_create(), driver.event_create()

    def go(target: int, source: int) -> Callable[[], None]:
        def call() -> None:
            driver.copy(target, source, nbytes, stream)
            driver.event_record(event, stream)
            driver.event_synchronize(event)

        return call

    report("plain h2d", MiB=nbytes // MIB, **rate(nbytes, go(device, host)))
    report("plain d2h", MiB=nbytes // MIB, **rate(nbytes, go(host, device)))


def both_ways(driver: Driver, device: int, host: int, nbytes: int) -> None:
    """A copy each way at once."""
    lanes = [(driver.stream_create(), driver.event_create()) for _ in range(2)]
    half = nbytes // 2

    def call() -> None:
        driver.copy(device, host, half, lanes[0][0])
        driver.copy(host + half, device + half, half, lanes[1][0])
        for stream, event in lanes:
            driver.event_record(event, stream)
        for _, event in lanes:
            driver.event_synchronize(event)

    report("plain both ways", MiB=nbytes // MIB, **rate(nbytes, call))


def batches(driver: Driver, device: int, mapped: Mapped, where: str) -> None:
    """The copier's own way: pieces of several sizes, objects of 32 MiB, with digests on saves."""
    copier = CudaCopier(driver)
    started = time.perf_counter()
    copier.attach(mapped.address, mapped.nbytes)
    done = copier.pinning.wait(60)
    spent = time.perf_counter() - started
    report(
        "pin in the background", where=where, done=done, GiB=copier.pinning.pinned_bytes / GIB,
        seconds=round(spent, 3),
    )  # fmt: skip
    nbytes = min(mapped.nbytes, GIB)
    for size in (16 * KIB, 64 * KIB, 256 * KIB, 2 * MIB):
        for object_bytes in (2 * MIB, 32 * MIB):
            blocks = Blocks(device, nbytes // size, size, object_bytes)
            hosts = blocks.hosts(mapped.address)
            one(copier, blocks, hosts, nbytes, where, size)
            for threads in (2, 4) if size > 16 * KIB else ():
                several(copier, blocks, hosts, nbytes, where, size, threads)
    copier.close()


def one(copier: CudaCopier, blocks: Blocks, hosts: Any, nbytes: int, where: str, size: int) -> None:
    """Measure one call of 1 GiB, and check what arrives."""
    shape = {"where": where, "piece_KiB": size // KIB, "object_MiB": blocks.object_bytes / MIB}
    report("load", **shape, **rate(nbytes, lambda: copier.scatter(hosts, blocks.pieces), 3))
    report("save", **shape, **rate(nbytes, lambda: copier.gather(blocks.pieces, hosts), 3))


def several(
    copier: CudaCopier, blocks: Blocks, hosts: Any, nbytes: int, where: str, size: int, threads: int
) -> None:
    """Measure several calls at once, each with its part of the objects."""
    parts = np.array_split(np.arange(len(blocks.pieces)), threads)
    cut = [(hosts[p], blocks.pieces.take(p)) for p in parts]
    shape = {
        "where": where, "piece_KiB": size // KIB, "object_MiB": blocks.object_bytes / MIB,
        "calls": threads,
    }  # fmt: skip
    with ThreadPoolExecutor(threads) as pool:
        report(
            "load",
            **shape,
            **rate(nbytes, lambda: list(pool.map(lambda c: copier.scatter(*c), cut)), 3),
        )
        report(
            "save",
            **shape,
            **rate(nbytes, lambda: list(pool.map(lambda c: copier.gather(c[1], c[0]), cut)), 3),
        )


def small(driver: Driver, device: int, mapped: Mapped) -> None:
    """How long the smallest calls take: what a call costs beside its bytes."""
    copier = CudaCopier(driver)
    copier.attach(mapped.address, mapped.nbytes)
    copier.pinning.wait(60)
    for nbytes in (4 * KIB, 64 * KIB, MIB):
        blocks = Blocks(device, 1, nbytes, nbytes)
        hosts = blocks.hosts(mapped.address)
        loads = rate(nbytes, partial(copier.scatter, hosts, blocks.pieces), 100)
        saves = rate(nbytes, partial(copier.gather, blocks.pieces, hosts), 100)
        report("small", KiB=nbytes // KIB, load_us=loads["ms"] * 1e3, save_us=saves["ms"] * 1e3)
    copier.close()


def unpinned(driver: Driver, device: int, mapped: Mapped) -> None:
    """The same without pinning: through staging memory."""
    copier = CudaCopier(driver)
    nbytes = 256 * MIB
    for size in (64 * KIB, 2 * MIB):
        blocks = Blocks(device, nbytes // size, size, 2 * MIB)
        one(copier, blocks, blocks.hosts(mapped.address), nbytes, "staged", size)
    copier.close()


def stalls(driver: Driver, device: int, path: Path) -> None:
    """How long copies wait for a registration that goes on in another thread."""
    mapped = Mapped(path, 2 * GIB, create=True)
    native.populate(mapped.address, mapped.nbytes)
    pinned = driver.host_alloc(MIB)
    stream, event = driver.stream_create(), driver.event_create()
    for chunk in (64 * MIB, 256 * MIB, 1024 * MIB):
        done = threading.Event()

        def pin(step: int = chunk, over: threading.Event = done) -> None:
            for at in range(0, mapped.nbytes, step):
                driver.host_register(mapped.address + at, step)
            over.set()

        waits: list[float] = []
        thread = threading.Thread(target=pin)
        thread.start()
        while not waits or not done.is_set():
            started = time.perf_counter()
            driver.copy(device, pinned, 64 * KIB, stream)
            driver.event_record(event, stream)
            driver.event_synchronize(event)
            waits.append(time.perf_counter() - started)
            time.sleep(0.0005)
        thread.join()
        for at in range(0, mapped.nbytes, chunk):
            driver.host_unregister(mapped.address + at)
        waits.sort()
        report(
            "copy while registering", chunk_MiB=chunk // MIB, copies=len(waits),
            p50_us=round(waits[len(waits) // 2] * 1e6), max_ms=round(waits[-1] * 1e3, 2),
        )  # fmt: skip
    driver.host_free(pinned)
    path.unlink()


def verified(driver: Driver, device: int, mapped: Mapped) -> None:
    """Random bytes to the GPU and back by another way, compared."""
    copier = CudaCopier(driver)
    copier.attach(mapped.address, mapped.nbytes)
    copier.pinning.wait(60)
    nbytes, size = 128 * MIB, 64 * KIB
    data = np.random.default_rng(1).integers(0, 1 << 63, nbytes // 8, np.uint64).view(np.uint8)
    mapped.view[:nbytes] = data
    blocks = Blocks(device, nbytes // size, size, 2 * MIB)
    copier.scatter(blocks.hosts(mapped.address), blocks.pieces)
    again = blocks.hosts(mapped.address + nbytes)
    sums = copier.gather(blocks.pieces, again)
    right = bool((mapped.view[nbytes : 2 * nbytes] == data).all())
    objects = copy.whole(blocks.hosts(mapped.address), np.full(len(sums), 2 * MIB, np.uint64))
    digests = bool((copy.digest(objects) == sums).all())
    apart = CudaCopier(driver)  # nothing pinned: staging
    apart.scatter(again, blocks.pieces)
    mapped.view[:nbytes] = 0
    apart.gather(blocks.pieces, blocks.hosts(mapped.address))
    staged = bool((mapped.view[:nbytes] == data).all())
    report("bytes", pinned=right, digests=digests, staged=staged)
    copier.close()
    apart.close()


def digests(nbytes: int) -> None:
    """xxh3 of 2 MiB objects in host memory, by threads."""
    memory = np.random.default_rng(3).integers(0, 1 << 63, nbytes // 8, np.uint64)
    size = 2 * MIB
    count = nbytes // size
    base = int(memory.ctypes.data)
    objects = copy.whole(
        np.arange(count, dtype=np.uint64) * np.uint64(size) + np.uint64(base),
        np.full(count, size, np.uint64),
    )
    sums = np.zeros(count, np.uint64)
    for threads in (1, 2, 4, 8, 16):
        if threads > (os.cpu_count() or 1):
            break
        cuts = np.linspace(0, count, threads + 1).astype(int).tolist()
        with ThreadPoolExecutor(threads) as pool:
            work = list(itertools.pairwise(cuts))

            def call(pool: Any = pool, work: Any = work) -> None:
                list(pool.map(lambda w: copy.digest_some(objects, w[0], w[1], sums), work))

            report("xxh3", threads=threads, by=copy.implementation(), **rate(nbytes, call, 3))


def other_process(driver: Driver, device: int, nbytes: int, path: Path) -> None:
    """The copier in another process: GPU memory through an IPC handle, order by an IPC event."""
    shared = ipc.share(driver, device, nbytes)
    event, stream = driver.event_create(ipc=True), driver.stream_create()
    told = {
        **{k: v.hex() if isinstance(v, bytes) else v for k, v in shared.items()},
        "event": driver.event_handle(event).hex(), "path": str(path),
    }  # fmt: skip
    pinned = driver.host_alloc(64 * MIB)
    pattern = np.frombuffer(native.view(pinned, 64 * MIB), np.uint64)
    child = subprocess.Popen(
        [sys.executable, __file__, "--child"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(json.dumps(told) + "\n")
        child.stdin.flush()
        print(child.stdout.readline().rstrip(), flush=True)
        # Recorded behind a long queue: a child that does not wait for it saves other bytes.
        wrong = 0
        for round_ in range(5):
            pattern[:] = round_ + 1
            for at in range(0, nbytes, 64 * MIB):
                driver.copy(device + at, pinned, 64 * MIB, stream)
            driver.event_record(event, stream)
            child.stdin.write(json.dumps(round_ + 1) + "\n")
            child.stdin.flush()
            wrong += int(child.stdout.readline() or "1")
        report("ipc event", rounds=5, wrong=wrong)
        child.stdin.write("null\n")
        child.stdin.flush()
        for line in child.stdout:
            print(line.rstrip(), flush=True)
            if line.startswith("{"):
                ROWS.append(json.loads(line))
        report("ipc child", rc=child.wait(30))
    finally:
        child.kill()
        child.wait()
        driver.host_free(pinned)


def child() -> None:
    """The other process."""
    told = json.loads(sys.stdin.readline())
    shared = {**told, "handle": bytes.fromhex(told["handle"])}
    started = time.perf_counter()
    driver = open_driver(told["device"])
    device = ipc.open(driver, shared)
    event = driver.event_open(bytes.fromhex(told["event"]))
    print(f"# the child has opened both in {time.perf_counter() - started:.2f} s", flush=True)
    mapped = Mapped(Path(told["path"]), 2 * GIB, create=False)
    copier = CudaCopier(driver)
    copier.attach(mapped.address, mapped.nbytes)
    copier.pinning.wait(60)
    nbytes = shared["nbytes"]
    blocks = Blocks(device, nbytes // (2 * MIB), 2 * MIB, 2 * MIB)
    hosts = blocks.hosts(mapped.address)
    for line in sys.stdin:
        expected = json.loads(line)
        if expected is None:
            break
        with copier.after(event):
            copier.gather(blocks.pieces, hosts)
        print(int((mapped.view[:nbytes].view(np.uint64) != expected).any()), flush=True)
    copier.close()
    with Stage("other process"):
        batches(driver, device, mapped, "ipc")
    ipc.close(driver, shared, device)


def table() -> None:
    """Print what was measured, a line each."""
    for row in ROWS:
        cells = [f"{key}={value}" for key, value in row.items() if key not in ("stage", "where_")]
        print(f"{row['stage']:<24} " + "  ".join(cells))


def main() -> None:
    """Run all stages."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gib", type=float, default=2.0, help="shared memory to touch")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--dir", default="/dev/shm")
    parser.add_argument("--child", action="store_true")
    options = parser.parse_args()
    if options.child:
        child()
        return
    report("machine", cores=os.cpu_count(), copies=copy.prepare(), python=sys.version.split()[0])
    with tempfile.TemporaryDirectory(dir=options.dir) as name:
        measure(Path(name), options.gib)
    print("\n# --- table")
    table()
    if options.json:
        options.json.write_text(json.dumps(ROWS, indent=1))


def measure(directory: Path, gib: float) -> None:
    """Run the stages that need a GPU, and those that do not."""
    with Stage("touch"):
        touch(gib, directory)
    with Stage("xxh3"):
        digests(GIB)
    driver = device = None
    with Stage("driver"):
        driver = open_driver()
        driver.use()
        report(
            "driver",
            version=getattr(driver, "version", 0),
            batch=getattr(driver, "batch_name", ""),
            uuid=driver.uuid(),
            pci=driver.pci_bus_id(),
        )
        device = driver.memory_alloc(2 * GIB)
    if driver is None or device is None:
        return
    path = directory / "segment"
    mapped = Mapped(path, 2 * GIB, create=True)
    native.populate(mapped.address, mapped.nbytes)
    pinned = None
    with Stage("plain, allocated pinned"):
        pinned = driver.host_alloc(GIB)
        plain(driver, device, pinned, GIB)
        both_ways(driver, device, pinned, GIB)
    if pinned is not None:
        driver.host_free(pinned)
    with Stage("register"):
        register(driver, mapped, touched=True)
    with Stage("plain, registered"):
        driver.host_register(mapped.address, GIB)
        plain(driver, device, mapped.address, GIB)
        driver.host_unregister(mapped.address)
    with Stage("bytes"):
        verified(driver, device, mapped)
    with Stage("small"):
        small(driver, device, mapped)
    with Stage("stalls"):
        stalls(driver, device, directory / "stalls")
    with Stage("batches"):
        batches(driver, device, mapped, "own")
    with Stage("unpinned"):
        unpinned(driver, device, mapped)
    with Stage("other process"):
        other_process(driver, device, GIB, path)


if __name__ == "__main__":
    main()
