"""The client process of a ``mooncake.store``, and the owner of its segment.

Runs in any interpreter that has Mooncake's wheel and NumPy, or finds moonpool's ``mooncake``. A
client gives no memory to the pool; the owner does and is another process, so the wheel's bytes
travel over TCP as they do between its hosts.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from moonpool.bench.batch import Bytes
from moonpool.bench.worker import Answer, Client, serve

LOCAL_BUFFER_BYTES = 64 << 20
MASTER_START_S = 20.0
KEY_BYTES = 110
PUT_OBJECTS = 500
"""Larger batches of small objects overrun its queue (-800)."""
PR_SET_PDEATHSIG = 1


class MooncakeClient(Client):
    """Text keys of 110 bytes, such as vLLM's connector for Mooncake makes; zero-copy calls."""

    def __init__(self) -> None:
        super().__init__()
        self.store: Any = None
        self.master: subprocess.Popen[bytes] | None = None
        self.keys: list[str] = []
        self.out: list[list[int]] = []
        self.back: list[list[int]] = []
        self.values = False
        self.single = False

    def do_own(self, nbytes: int) -> Answer:
        """Start a master and own a segment of so many bytes; return the master's address."""
        port, metrics = free_port(), free_port()
        self.master = start_master(port, metrics)
        address = f"127.0.0.1:{port}"
        self._setup(address, nbytes)
        return {"address": address, "master_pid": self.master.pid}

    def do_manner(self, *, values: bool = False, single: bool = False) -> Answer:
        """Choose calls: small objects as values, and the objects of a batch one by one."""
        self.values, self.single = values, single
        return {}

    def connect(self, settings: dict[str, Any]) -> Answer:
        self._setup(settings["address"], 0)
        return {}

    def _setup(self, address: str, nbytes: int) -> None:
        self.store = importlib.import_module("mooncake.store").MooncakeDistributedStore()
        code = self.store.setup(
            "127.0.0.1", "P2PHANDSHAKE", nbytes, LOCAL_BUFFER_BYTES, "tcp", "", address
        )
        if code:
            self.store = None
            raise RuntimeError(f"setup() returned {code}")
        if type(self.store).__module__.startswith("moonpool"):
            # Its compiled copies come in the background once they are worth it; here they are.
            importlib.import_module("moonpool.transport.copy").prepare()

    def use(self, memory: Bytes) -> None:
        code = self.store.register_buffer(memory.ctypes.data, memory.nbytes)
        if code:
            raise RuntimeError(f"register_buffer() returned {code}")

    def drop(self, memory: Bytes) -> None:
        self.store.unregister_buffer(memory.ctypes.data)

    def arrange(self, name: str) -> None:
        self.keys = [key(name, i) for i in range(self.batch.objects)]
        offsets = self.batch.offsets(seed=1)
        self.out = (offsets + self.source.ctypes.data).tolist()
        self.back = (offsets + self.target.ctypes.data).tolist()

    def put_batch(self) -> Iterable[int]:
        return [code for code in self._put(self.keys, self.out) if code]

    def _put(self, keys: list[str], places: list[list[int]]) -> list[int]:
        n, size = self.batch.pieces, self.batch.piece_bytes
        if n == 1:
            flat = [place[0] for place in places]
            if self.single:
                put_from = self.store.put_from
                return [put_from(*each, size) for each in zip(keys, flat, strict=True)]
            return list(self.store.batch_put_from(keys, flat, [size] * len(keys)))
        sizes = [[size] * n] * len(keys)
        return list(self.store.batch_put_from_multi_buffers(keys, places, sizes))

    def get_batch(self) -> Iterable[int]:
        n, size = self.batch.pieces, self.batch.piece_bytes
        if n == 1:
            flat = [place[0] for place in self.back]
            if self.single:
                get_into = self.store.get_into
                got = [get_into(*each, size) for each in zip(self.keys, flat, strict=True)]
            else:
                got = self.store.batch_get_into(self.keys, flat, [size] * len(flat))
        else:
            sizes = [[size] * n] * len(self.keys)
            got = self.store.batch_get_into_multi_buffers(self.keys, self.back, sizes)
        return [code for code in got if code != n * size]

    def exists_batch(self) -> int:
        return sum(found == 1 for found in self.store.batch_is_exist(self.keys))

    def remove_batch(self) -> None:
        self.store.batch_remove(self.keys, True)

    def put_many(self, name: str, first: int, memory: Bytes, nbytes: int) -> Iterable[int]:
        failed: list[int] = []
        for at in range(0, len(memory) // nbytes, PUT_OBJECTS):
            part = memory[at * nbytes : (at + PUT_OBJECTS) * nbytes]
            count = len(part) // nbytes
            keys = [key(name, i) for i in range(first + at, first + at + count)]
            places = [part.ctypes.data + i * nbytes for i in range(count)]
            codes = self.store.batch_put_from(keys, places, [nbytes] * count)
            failed += [code for code in codes if code]
        return failed

    def lookup(self, name: str, count: int) -> Callable[[], int]:
        keys, store = [key(name, i) for i in range(count)], self.store

        def ask() -> int:
            found = store.batch_is_exist(keys)
            return count if 0 not in found and min(found) == 1 else found.index(0)

        return ask

    def put_small(self, number: int, memory: Bytes) -> int:
        if self.values:
            return int(self.store.put(f"small-{number}", memory.tobytes()))
        return int(self.store.put_from(f"small-{number}", memory.ctypes.data, memory.nbytes))

    def get_small(self, number: int, memory: Bytes) -> int:
        if self.values:
            value = self.store.get(f"small-{number}")
            memory[: len(value)] = np.frombuffer(value, np.uint8)
            return 0 if len(value) == memory.nbytes else -1
        got = int(self.store.get_into(f"small-{number}", memory.ctypes.data, memory.nbytes))
        return 0 if got == memory.nbytes else got or -1

    def clear(self) -> None:
        self.store.remove_all(True)

    def close(self) -> None:
        if self.store is not None:
            self.store.close()
        if self.master is not None:
            self.master.kill()
            self.master.wait()


def key(name: str, number: int) -> str:
    """Return a key of 110 bytes."""
    return f"bench@{name}@tp_rank:0@{number:064x}".ljust(KEY_BYTES, "-")


def free_port() -> int:
    """Return a port that nobody uses at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start_master(port: int, metrics_port: int) -> subprocess.Popen[bytes]:
    """Start ``mooncake_master``; it ends with this process, however that ends."""
    inside = Path(next(iter(importlib.import_module("mooncake").__path__))) / "mooncake_master"
    binary = inside if inside.exists() else shutil.which("mooncake_master") or inside
    libc = ctypes.CDLL(None)
    master = subprocess.Popen(
        [str(binary), f"--port={port}", f"--metrics_port={metrics_port}"],
        stdin=subprocess.DEVNULL,
        stdout=2,
        stderr=2,
        preexec_fn=lambda: libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL),
    )
    deadline = time.monotonic() + MASTER_START_S
    while time.monotonic() < deadline and master.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), 1.0).close()
        except OSError:
            time.sleep(0.05)
        else:
            return master
    master.kill()
    raise RuntimeError(f"mooncake_master did not listen within {MASTER_START_S:.0f} s")


if __name__ == "__main__":
    os.environ.setdefault("GLOG_minloglevel", "1")
    serve(MooncakeClient())
