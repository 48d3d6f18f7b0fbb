# ruff: noqa: T201
"""What the settings of moonpool's GPU copies are chosen by: questions to one machine.

    python bench/gpu/tune.py [--only pieces,saves] [--json FILE]

How small pieces are moved best; what hashing costs where; steps and threads of saves; whom a
registration stops.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.gpu.probe import GIB, KIB, MIB, ROWS, Blocks, Mapped, Stage, rate, report, table

from moonpool.gpu import CudaCopier, GpuError, open_driver
from moonpool.gpu import copier as copier_module
from moonpool.gpu.base import Driver
from moonpool.transport import copy, native

CHILD_S = 4.0


class Lane:
    """A stream that one waits for."""

    def __init__(self, driver: Driver) -> None:
        self.driver, self.stream, self.event = driver, driver.stream_create(), driver.event_create()

    def wait(self) -> None:
        self.driver.event_record(self.event, self.stream)
        self.driver.event_synchronize(self.event)


def pieces(driver: Driver, device: int, mapped: Mapped) -> None:
    """Small pieces to the GPU: straight, or through a buffer on the GPU."""
    lane, nbytes = Lane(driver), 64 * MIB
    driver.host_register(mapped.address, nbytes)
    scratch = driver.memory_alloc(nbytes)
    rng = np.random.default_rng(1)
    for size in (2 * KIB, 4 * KIB, 8 * KIB, 16 * KIB, 32 * KIB, 48 * KIB, 64 * KIB):
        count = nbytes // size
        at = np.arange(count, dtype=np.uint64) * np.uint64(size)
        to = rng.permutation(at) + np.uint64(device)
        host, near = at + np.uint64(mapped.address), at + np.uint64(scratch)
        sizes = np.full(count, size, np.uint64)
        batch = partial(driver.copy_batch, stream=lane.stream, stable=False)
        one_by_one = partial(loop, driver, size=size, stream=lane.stream)
        up = partial(driver.copy, scratch, mapped.address, nbytes, lane.stream)
        down = partial(driver.copy, mapped.address, scratch, nbytes, lane.stream)
        ways: dict[str, list[Callable[[], None]]] = {
            "batch any": [partial(batch, to, host, sizes, stable=True)],
            "batch in order": [partial(batch, to, host, sizes)],
            "loop": [partial(one_by_one, to, host)],
            "scratch, batch": [up, partial(batch, to, near, sizes)],
            "scratch, loop": [up, partial(one_by_one, to, near)],
            "back, batch": [partial(batch, host, to, sizes)],
            "back, scratch": [partial(batch, near, to, sizes), down],
        }
        for name, calls in ways.items():
            with Stage(f"pieces {name}"):
                report(
                    "pieces", way=name, KiB=size // KIB,
                    **rate(nbytes, partial(in_turn, [*calls, lane.wait]), 3),
                )  # fmt: skip
    driver.memory_free(scratch)
    driver.host_unregister(mapped.address)


def loop(driver: Driver, to: Any, source: Any, size: int, stream: int) -> None:
    """Copy one by one."""
    for target, at in zip(to.tolist(), source.tolist(), strict=True):
        driver.copy(target, at, size, stream)


def in_turn(calls: list[Callable[[], None]]) -> None:
    """Make several calls."""
    for call in calls:
        call()


def borders(driver: Driver, device: int, mapped: Mapped) -> None:
    """A copy over the border of two registrations."""
    lane = Lane(driver)
    for half in (0, 1):
        driver.host_register(mapped.address + half * MIB, MIB)
    at = np.array([mapped.address + MIB - 64 * KIB], np.uint64)
    one, size = np.array([device], np.uint64), np.array([128 * KIB], np.uint64)
    ways: dict[str, Callable[[], None]] = {
        "copy": partial(driver.copy, device, int(at[0]), 128 * KIB, lane.stream),
        "batch": partial(driver.copy_batch, one, at, size, lane.stream, stable=True),
    }
    for name, call in ways.items():
        try:
            call()
            lane.wait()
            report("border", by=name, works=True)
        except GpuError as error:
            report("border", by=name, works=False, error=str(error))
    for half in (0, 1):
        driver.host_unregister(mapped.address + half * MIB)


def hashes(mapped: Mapped) -> None:
    """One thread's xxh3 from the cache and from memory, in objects of several sizes."""
    for where, nbytes in (("cache", MIB), ("L3", 16 * MIB), ("memory", GIB)):
        for size in (256 * KIB, 2 * MIB):
            count = max(nbytes // size, 1)
            at = np.arange(count, dtype=np.uint64) * np.uint64(size)
            objects = copy.whole(at + np.uint64(mapped.address), np.full(count, size, np.uint64))
            report(
                "xxh3 of one thread", where=where, object_KiB=size // KIB,
                **rate(count * size, partial(copy.digest, objects), 5),
            )  # fmt: skip
    report(
        "sum of one thread",
        **rate(GIB, lambda: mapped.view[:GIB].view(np.uint64).sum(), 3),
    )


def saves(driver: Driver, device: int, mapped: Mapped) -> None:
    """Saves by the bytes between marks, the threads that hash and the calls at once."""
    for threads in (4, 8, 12, 16):
        copier = CudaCopier(driver, hash_threads=threads)
        copier.attach(mapped.address, mapped.nbytes)
        copier.pinning.wait(60)
        for mark in (4 * MIB, 16 * MIB, 32 * MIB):
            copier_module.MARK_BYTES = copier_module.HASH_BYTES = mark
            for object_bytes in (2 * MIB, 32 * MIB):
                for calls, nbytes in ((1, GIB), (4, GIB), (1, 64 * MIB)):
                    save(copier, device, mapped, (threads, mark, object_bytes, calls, nbytes))
        copier.close()


def save(
    copier: CudaCopier, device: int, mapped: Mapped, shape: tuple[int, int, int, int, int]
) -> None:
    """Measure one of them."""
    threads, mark, object_bytes, calls, nbytes = shape
    blocks = Blocks(device, nbytes // (2 * MIB), 2 * MIB, object_bytes)
    hosts = blocks.hosts(mapped.address)
    parts = np.array_split(np.arange(len(blocks.pieces)), calls)
    cut = [(blocks.pieces.take(p), hosts[p]) for p in parts]
    with ThreadPoolExecutor(calls) as pool:
        started = time.process_time()
        found = rate(nbytes, lambda: list(pool.map(lambda c: copier.gather(*c), cut)), 4)
        spent = (time.process_time() - started) / (5 * nbytes / 1e9)
    report(
        "save", threads=threads, mark_MiB=mark // MIB, object_MiB=object_bytes // MIB,
        calls=calls, MiB=nbytes // MIB, cpu_s_per_GB=round(spent, 3), **found,
    )  # fmt: skip


def neighbours(driver: Driver, device: int, directory: Path) -> None:
    """How another process's copies fare while this one registers memory, and while it copies."""
    path = directory / "neighbours"
    mapped = Mapped(path, 4 * GIB, create=True)
    native.populate(mapped.address, mapped.nbytes)

    def idle(until: float) -> None:
        time.sleep(max(until - time.monotonic(), 0))

    def pin(step: int, until: float) -> None:
        while time.monotonic() < until:
            for at in range(0, mapped.nbytes, step):
                driver.host_register(mapped.address + at, step)
            for at in range(0, mapped.nbytes, step):
                driver.host_unregister(mapped.address + at)

    def load(verb: str, until: float) -> None:
        copier = CudaCopier(driver)
        copier.attach(mapped.address, GIB)
        copier.pinning.wait(60)
        blocks = Blocks(device, 512, 2 * MIB, 2 * MIB)
        hosts = blocks.hosts(mapped.address)
        while time.monotonic() < until:
            if verb == "load":
                copier.scatter(hosts, blocks.pieces)
            else:
                copier.gather(blocks.pieces, hosts)
        copier.close()

    work: dict[str, Callable[[float], None]] = {
        "nothing": idle,
        "pin 64 MiB": lambda until: pin(64 * MIB, until),
        "pin 1 GiB": lambda until: pin(GIB, until),
        "load": lambda until: load("load", until),
        "save": lambda until: load("save", until),
    }
    for name, call in work.items():
        child = subprocess.Popen(
            [sys.executable, __file__, "--child"], stdout=subprocess.PIPE, text=True
        )
        assert child.stdout is not None
        child.stdout.readline()
        call(time.monotonic() + CHILD_S - 1)
        found = json.loads(child.stdout.readline())
        child.wait(30)
        report("copies of another process", meanwhile=name, **found)
    path.unlink()


def neighbour() -> None:
    """Copy 64 KiB on a high-priority stream again and again, as an engine's step does."""
    driver = open_driver()
    device, host = driver.memory_alloc(MIB), driver.host_alloc(MIB)
    stream, event = driver.stream_create(low_priority=False), driver.event_create()
    print("ready", flush=True)
    waits = []
    until = time.monotonic() + CHILD_S
    while time.monotonic() < until:
        started = time.perf_counter()
        driver.copy(device, host, 64 * KIB, stream)
        driver.event_record(event, stream)
        driver.event_synchronize(event)
        waits.append(time.perf_counter() - started)
    waits.sort()
    micro = [round(waits[int(len(waits) * q)] * 1e6) for q in (0.5, 0.99, 0.999)]
    print(
        json.dumps(
            {
                "copies": len(waits),
                "p50_us": micro[0],
                "p99_us": micro[1],
                "p999_us": micro[2],
                "max_ms": round(waits[-1] * 1e3, 2),
            }
        ),
        flush=True,
    )


def fairness(driver: Driver, device: int, path: Path) -> None:
    """Loads while the pool is still being pinned in the background."""
    mapped = Mapped(path, 8 * GIB, create=True)
    threads = [
        threading.Thread(target=native.populate, args=(mapped.address + i * GIB, GIB))
        for i in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    copier = CudaCopier(driver)
    blocks = Blocks(device, 64, 2 * MIB, 2 * MIB)
    hosts = blocks.hosts(mapped.address)
    copier.attach(mapped.address, mapped.nbytes)
    started, spent = time.perf_counter(), []
    while not copier.pinning.wait(0):
        began = time.perf_counter()
        copier.scatter(hosts, blocks.pieces)
        spent.append(time.perf_counter() - began)
    over = time.perf_counter() - started
    if spent:
        spent.sort()
        report(
            "loads of 128 MiB while 8 GiB are pinned", loads=len(spent), seconds=round(over, 2),
            p50_ms=round(spent[len(spent) // 2] * 1e3, 2), max_ms=round(spent[-1] * 1e3, 2),
        )  # fmt: skip
    copier.close()
    path.unlink()


def main() -> None:
    """Ask all questions."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--dir", default="/dev/shm")
    parser.add_argument("--only", default="", help="questions, separated by commas")
    parser.add_argument("--child", action="store_true")
    options = parser.parse_args()
    if options.child:
        neighbour()
        return
    report("machine", cores=os.cpu_count(), copies=copy.prepare(), python=sys.version.split()[0])
    driver = open_driver(0)
    device = driver.memory_alloc(GIB)
    with tempfile.TemporaryDirectory(dir=options.dir) as name:
        directory = Path(name)
        mapped = Mapped(directory / "segment", GIB, create=True)
        native.populate(mapped.address, mapped.nbytes)
        questions: dict[str, Callable[[], None]] = {
            "borders": lambda: borders(driver, device, mapped),
            "pieces": lambda: pieces(driver, device, mapped),
            "hashes": lambda: hashes(mapped),
            "fairness": lambda: fairness(driver, device, directory / "fairness"),
            "neighbours": lambda: neighbours(driver, device, directory),
            "saves": lambda: saves(driver, device, mapped),
        }
        for question, ask in questions.items():
            if not options.only or question in options.only.split(","):
                with Stage(question):
                    ask()
    print("\n# --- table")
    table()
    if options.json:
        options.json.write_text(json.dumps(ROWS, indent=1))


if __name__ == "__main__":
    main()
