"""What a load's speed depends on: whose host memory, of which pages, spread how far, how many
streams. Needs a GPU and neither PyTorch nor vLLM.

    python bench/gpu/memory.py [--gib 16] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.gpu.probe import GIB, MIB, ROWS, Stage, report, table

from moonpool.gpu import ipc, open_driver
from moonpool.gpu.base import Driver
from moonpool.transport import huge, native

OBJECT, BLOCK = 32 * MIB, 2 * MIB
DEVICE_BYTES = 4 * GIB
FACTS = (
    "/sys/kernel/mm/transparent_hugepage/enabled",
    "/sys/kernel/mm/transparent_hugepage/shmem_enabled",
    "/sys/kernel/mm/transparent_hugepage/defrag",
    "/sys/devices/system/node/online",
    "/sys/devices/system/cpu/cpu0/cache/index3/size",
    "/proc/sys/kernel/osrelease",
)


def facts() -> None:
    """Report what the machine's memory is like."""
    found: dict[str, Any] = {}
    for path in FACTS:
        try:
            found[path.rsplit("/", 1)[-1]] = Path(path).read_text().strip()
        except OSError as error:
            found[path.rsplit("/", 1)[-1]] = error.strerror
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.split(":")[0] in ("MemTotal", "MemFree", "ShmemHugePages", "Hugepagesize"):
            found[line.split(":")[0]] = line.split(":")[1].strip()
    cpu = [x for x in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in x]
    report("facts", cpu=cpu[0].split(":")[1].strip() if cpu else "", cores=os.cpu_count(), **found)


class Area:
    """Shared memory in a file, of small or of huge pages, touched."""

    def __init__(self, path: Path, nbytes: int, *, of_huge: bool) -> None:
        with path.open("w+b") as file:
            file.truncate(nbytes)
            self.mapping, first = huge.mapped(file.fileno(), nbytes, writable=True)
        view = np.frombuffer(self.mapping, np.uint8)[first : first + nbytes]
        self.address, self.nbytes = int(view.ctypes.data), nbytes
        step = 64 * MIB
        codes: list[int] = []

        def touch(at: int) -> None:
            if of_huge:
                codes.append(huge.collapse(at, step))
            native.populate(at, step)

        began = time.perf_counter()
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(touch, range(self.address, self.address + nbytes, step)))
        self.touch_GBps = nbytes / (time.perf_counter() - began) / 1e9
        self.refused = sum(code != 0 for code in codes)


class Copies:
    """Loads of objects into random blocks of the GPU, in one or more streams."""

    def __init__(self, driver: Driver, device: int) -> None:
        self._driver = driver
        self._lanes = [(driver.stream_create(), driver.event_create()) for _ in range(8)]
        rng = np.random.default_rng(1)
        count = DEVICE_BYTES // BLOCK
        self._blocks = rng.permutation(count).astype(np.uint64) * np.uint64(BLOCK) + np.uint64(
            device
        )
        self._next = 0

    def load(self, objects: np.ndarray[Any, np.dtype[np.uint64]], streams: int) -> float:
        """Load objects (addresses); return GB/s."""
        per = OBJECT // BLOCK
        inside = np.arange(per, dtype=np.uint64) * np.uint64(BLOCK)
        sizes = np.full(2 * per, BLOCK, np.uint64)
        began = time.perf_counter()
        for number, at in enumerate(range(0, len(objects), 2)):
            source = (objects[at : at + 2, None] + inside[None, :]).ravel()
            to = np.take(self._blocks, np.arange(self._next, self._next + len(source)), mode="wrap")
            self._next = (self._next + len(source)) % len(self._blocks)
            stream = self._lanes[number % streams][0]
            self._driver.copy_batch(to, source, sizes[: len(source)], stream, stable=True)
        for stream, event in self._lanes[:streams]:
            self._driver.event_record(event, stream)
        for _, event in self._lanes[:streams]:
            self._driver.event_synchronize(event)
        return len(objects) * OBJECT / (time.perf_counter() - began) / 1e9


def objects_of(address: int, nbytes: int) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """Return the addresses of an area's objects, in order."""
    return np.arange(address, address + nbytes - OBJECT + 1, OBJECT, dtype=np.uint64)


def study(copies: Copies, kind: str, address: int, nbytes: int) -> None:
    """Load from an area: each GiB of it alone, new and again; then objects from all over it."""
    by_gib = [objects_of(at, GIB) for at in range(address, address + nbytes - GIB + 1, GIB)]
    new = [copies.load(objects, 1) for objects in by_gib]
    again = [copies.load(objects, 1) for objects in by_gib]
    same = [copies.load(by_gib[0], 1) for _ in range(4)]
    report(
        "GiB by GiB", kind=kind, first_pass=spread(new), second_pass=spread(again),
        same_GiB=spread(same), each=[round(x, 1) for x in new],
    )  # fmt: skip
    everywhere = np.random.default_rng(3).permutation(objects_of(address, nbytes))
    count = min(len(everywhere), 125)
    for streams in (1, 2, 4, 8):
        rates = [
            copies.load(everywhere[at : at + count], streams)
            for at in range(0, len(everywhere) - count + 1, count)
        ]
        report("objects from all over", kind=kind, streams=streams, **spread(rates))
    # Blocks of 2 MiB that are not even beside each other in host memory.
    ways: list[tuple[str, Callable[[], float]]] = [
        ("in order, 4 streams", lambda: copies.load(objects_of(address, nbytes)[:count], 4)),
        ("in order, 1 stream", lambda: copies.load(objects_of(address, nbytes)[:count], 1)),
    ]
    for name, way in ways:
        report(name, kind=kind, **spread([way() for _ in range(3)]))


def spread(rates: list[float]) -> dict[str, float]:
    """Return the least, the middle and the most."""
    return {
        "min": round(min(rates), 1),
        "median": round(statistics.median(rates), 1),
        "max": round(max(rates), 1),
    }


def register(driver: Driver, address: int, nbytes: int, chunk: int = 64 * MIB) -> float:
    """Pin an area in chunks; return GB/s."""
    began = time.perf_counter()
    for at in range(address, address + nbytes, chunk):
        driver.host_register(at, min(chunk, address + nbytes - at))
    return nbytes / (time.perf_counter() - began) / 1e9


def unregister(driver: Driver, address: int, nbytes: int, chunk: int = 64 * MIB) -> None:
    """Unpin it."""
    for at in range(address, address + nbytes, chunk):
        driver.host_unregister(at)


def child() -> None:
    """Load from a file in another process, into GPU memory that the first one shares."""
    told = json.loads(sys.stdin.readline())
    driver = open_driver(told["device"])
    device = ipc.open(driver, {**told, "handle": bytes.fromhex(told["handle"])})
    with Path(told["path"]).open("r+b") as file:
        _mapping, first = huge.mapped(file.fileno(), told["bytes"], writable=True)
    address = int(np.frombuffer(_mapping, np.uint8).ctypes.data) + first
    began = time.perf_counter()
    native.populate(address, told["bytes"])
    report("map and enter", kind=told["kind"], seconds=round(time.perf_counter() - began, 2))
    report("register", kind=told["kind"], GBps=round(register(driver, address, told["bytes"]), 1))
    study(Copies(driver, device), told["kind"], address, told["bytes"])
    unregister(driver, address, told["bytes"])


def in_child(driver: Driver, device: int, path: Path, nbytes: int, kind: str) -> None:
    """Run ``child`` and take its rows."""
    shared = ipc.share(driver, device, DEVICE_BYTES)
    told = {
        **{k: v.hex() if isinstance(v, bytes) else v for k, v in shared.items()},
        "path": str(path), "bytes": nbytes, "kind": kind,
    }  # fmt: skip
    process = subprocess.run(
        [sys.executable, __file__, "--child"], input=json.dumps(told) + "\n", text=True,
        stdout=subprocess.PIPE, timeout=120, check=False,
    )  # fmt: skip
    for line in process.stdout.splitlines():
        print(line, flush=True)  # noqa: T201
        if line.startswith("{"):
            ROWS.append(json.loads(line))


def main() -> None:
    """Compare the kinds of memory."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gib", type=int, default=16)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--child", action="store_true")
    options = parser.parse_args()
    if options.child:
        child()
        return
    facts()
    nbytes = options.gib * GIB
    driver = open_driver()
    driver.use()
    device = driver.memory_alloc(DEVICE_BYTES)
    copies = Copies(driver, device)
    with Stage("allocated by the driver"):
        began = time.perf_counter()
        address = driver.host_alloc(nbytes)
        report("allocate", GBps=round(nbytes / (time.perf_counter() - began) / 1e9, 2))
        study(copies, "driver's", address, nbytes)
        driver.host_free(address)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        for kind, of_huge in (("small pages", False), ("huge pages", True)):
            with Stage(kind):
                path = Path(name) / kind
                area = Area(path, nbytes, of_huge=of_huge)
                report("touch", kind=kind, GBps=round(area.touch_GBps, 2), refused=area.refused)
                rate = register(driver, area.address, nbytes)
                report("register", kind=kind, GBps=round(rate, 1))
                study(copies, kind, area.address, nbytes)
                unregister(driver, area.address, nbytes)
                in_child(driver, device, path, nbytes, f"{kind}, other process")
                path.unlink()
                del area
    print("\n# --- table")  # noqa: T201
    table()
    if options.json:
        options.json.write_text(json.dumps(ROWS, indent=1))


if __name__ == "__main__":
    main()
