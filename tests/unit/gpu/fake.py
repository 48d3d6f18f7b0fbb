"""A GPU that is not there: device memory in files, copies that happen as late as they may.

Its addresses fault when the processor follows them. A stream does nothing before somebody waits
for it, so what forgets to wait gets the wrong bytes, every time. Other processes can open its
memory and its events through files in one directory.
"""

from __future__ import annotations

import itertools
import mmap
import os
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np

from moonpool.gpu.base import GpuError
from moonpool.transport import native
from moonpool.transport.base import U64

FAR = 1 << 60
POLL_S = 0.001
WAIT_S_MAX = 60.0
HANDLE = struct.Struct("<8sQ48x")

Op = Callable[[], None]


class _Memory:
    """An allocation: a mapped file."""

    def __init__(self, path: Path, nbytes: int) -> None:
        with path.open("r+b" if path.exists() else "w+b") as file:
            if nbytes:
                file.truncate(nbytes)
            self.mapping = mmap.mmap(file.fileno(), 0)
        self.path = path
        self.view = np.frombuffer(self.mapping, np.uint8)
        self.nbytes = len(self.view)
        self.host = int(self.view.ctypes.data)
        self.address = self.host + FAR
        self.opened = 1


class _Event:
    """How often it was recorded, and the last recording that has happened, in shared memory."""

    def __init__(self, memory: _Memory) -> None:
        self.memory = memory
        self.counts = memory.view[:16].view(np.uint64)
        self.stream: _Stream | None = None
        self.position = 0

    def happened(self, number: int) -> bool:
        return int(self.counts[1]) >= number


class _Stream:
    """A queue of operations; a thread does them, but only as many as somebody waits for."""

    def __init__(self, *, eager: bool) -> None:
        self.eager = eager
        self.queue: list[Op] = []
        self.done = 0
        self.wanted = 0
        self.closed = False
        self.changed = threading.Condition()
        threading.Thread(target=self._run, daemon=True).start()

    def put(self, op: Op) -> int:
        with self.changed:
            self.queue.append(op)
            if self.eager:
                self.wanted = len(self.queue)
                self.changed.notify_all()
            return len(self.queue)

    def want(self, count: int) -> None:
        with self.changed:
            self.wanted = max(self.wanted, count)
            self.changed.notify_all()

    def _run(self) -> None:
        while True:
            with self.changed:
                self.changed.wait_for(lambda: self.closed or self.done < self.wanted)
                if self.done >= self.wanted:
                    return
                op = self.queue[self.done]
            op()
            with self.changed:
                self.done += 1
                self.changed.notify_all()


class FakeDriver:
    """Behaves like moonpool.gpu.base.Driver. ``fail[call]`` makes that many calls of a function
    fail; ``calls`` counts them; ``wrong`` lists what a real one would not have forgiven."""

    def __init__(self, directory: Path, *, uuid: str = "GPU-fake", eager: bool = False) -> None:
        self.directory = directory
        self.calls: Counter[str] = Counter()
        self.fail: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.copied: list[tuple[int, int]] = []
        self.registered: dict[int, int] = {}
        self.before_register: Callable[[], None] = lambda: None
        self._uuid = uuid
        self._eager = eager
        self._lock = threading.RLock()
        self._names = itertools.count()
        self._memories: dict[int, _Memory] = {}
        self._events: dict[int, _Event] = {}
        self._streams: dict[int, _Stream] = {}
        self._handles = itertools.count(1000)
        self._allocated: dict[int, np.ndarray[tuple[int], np.dtype[np.uint8]]] = {}

    def use(self, device: int | str | None = None) -> None:
        self._count("use")
        if device not in (None, 0, self._uuid):
            raise GpuError(f"{device}: another GPU", "CUDA_ERROR_INVALID_DEVICE")

    def uuid(self) -> str:
        return self._uuid

    def pci_bus_id(self) -> str:
        return "0000:00:00.0"

    # --- order --------------------------------------------------------------------------------

    def stream_create(self, *, low_priority: bool = True) -> int:
        self._count("stream_create")
        handle = next(self._handles)
        self._streams[handle] = _Stream(eager=self._eager)
        return handle

    def stream_destroy(self, stream: int) -> None:
        found = self._streams.pop(stream)
        found.want(len(found.queue))
        with found.changed:
            found.closed = True
            found.changed.notify_all()

    def event_create(self, *, ipc: bool = False) -> int:
        self._count("event_create")
        return self._event(_Memory(self._path(), 4096))

    def event_destroy(self, event: int) -> None:
        del self._events[event]

    def event_record(self, event: int, stream: int) -> None:
        self._count("event_record")
        known = self._events[event]
        known.counts[0] += np.uint64(1)
        number = int(known.counts[0])

        def happen() -> None:
            known.counts[1] = number

        known.stream = self._stream(stream)
        known.position = known.stream.put(happen)

    def event_synchronize(self, event: int) -> None:
        self._count("event_synchronize")
        known = self._events[event]
        self._await(known, int(known.counts[0]))

    def event_query(self, event: int) -> bool:
        self._count("event_query")
        known = self._events[event]
        if known.stream is not None:
            known.stream.want(known.position)
        return known.happened(int(known.counts[0]))

    def event_handle(self, event: int) -> bytes:
        return self._handle(self._events[event].memory)

    def event_open(self, handle: bytes) -> int:
        return self._event(self._opened(handle))

    # --- bytes --------------------------------------------------------------------------------

    def copy(self, target: int, source: int, nbytes: int, stream: int) -> None:
        self._count("copy")
        self._queue(target, source, nbytes, stream)

    def copy_batch(
        self, targets: U64, sources: U64, sizes: U64, stream: int, *, stable: bool
    ) -> None:
        for array in (targets, sources, sizes):
            assert array.dtype == np.uint64
            assert array.shape == sizes.shape
        if not len(sizes):
            return
        self._count("copy_batch")
        rows = list(zip(targets.tolist(), sources.tolist(), sizes.tolist(), strict=True))
        for target, source, nbytes in rows:
            assert nbytes, "an empty copy"
            host = [at for at in (target, source) if at < FAR]
            if len(host) == 2 or (host and not self._pinned(host[0], nbytes)):
                raise GpuError("this host memory is not pinned", "CUDA_ERROR_INVALID_VALUE")
            if stable and source >= FAR:
                self.wrong.append("GPU memory called stable")
        for row in rows:
            self._queue(*row, stream)

    def _queue(self, target: int, source: int, nbytes: int, stream: int) -> None:
        near = [self._near(at, nbytes) for at in (target, source)]
        host = min(target, source)
        pinned = host < FAR and self._pinned(host, nbytes)
        self.copied.append((host, nbytes))

        def move() -> None:
            if pinned and not self._pinned(host, nbytes):
                self.wrong.append(f"unpinned during a copy of {nbytes} bytes")
                return
            native.memmove(near[0], near[1], nbytes)

        self._stream(stream).put(move)

    # --- memory -------------------------------------------------------------------------------

    def host_register(self, address: int, nbytes: int) -> None:
        self.before_register()
        self._count("host_register")
        with self._lock:
            for start, size in self.registered.items():
                if start < address + nbytes and address < start + size:
                    raise GpuError("again", "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED")
            self.registered[address] = nbytes

    def host_unregister(self, address: int) -> None:
        self._count("host_unregister")
        with self._lock:
            if self.registered.pop(address, None) is None:
                raise GpuError("not registered", "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED")

    def host_alloc(self, nbytes: int) -> int:
        self._count("host_alloc")
        memory = np.zeros(nbytes, np.uint8)
        address = int(memory.ctypes.data)
        self._allocated[address] = memory
        return address

    def host_free(self, address: int) -> None:
        del self._allocated[address]

    def memory_alloc(self, nbytes: int) -> int:
        self._count("memory_alloc")
        return self._keep(_Memory(self._path(), nbytes))

    def memory_free(self, address: int) -> None:
        del self._memories[address]

    def is_gpu_memory(self, address: int) -> bool:
        return address >= FAR

    def address_range(self, address: int) -> tuple[int, int]:
        for base, memory in self._memories.items():
            if base <= address < base + memory.nbytes:
                return base, memory.nbytes
        raise GpuError("no GPU memory", "CUDA_ERROR_INVALID_VALUE")

    def ipc_handle(self, address: int) -> bytes:
        self._count("ipc_handle")
        return self._handle(self._memories[address])

    def ipc_open(self, handle: bytes) -> int:
        self._count("ipc_open")
        return self._keep(self._opened(handle))

    def ipc_close(self, address: int) -> None:
        memory = self._memories[address]
        memory.opened -= 1
        if not memory.opened:
            del self._memories[address]

    def bytes_at(self, address: int, nbytes: int) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
        """Return GPU memory as an array, which no real driver could."""
        base, _ = self.address_range(address)
        memory = self._memories[base]
        return memory.view[address - base : address - base + nbytes]

    # --- inside -------------------------------------------------------------------------------

    def _count(self, call: str) -> None:
        with self._lock:
            self.calls[call] += 1
            if self.fail[call]:
                self.fail[call] -= 1
                raise GpuError(f"{call} fails", "CUDA_ERROR_OUT_OF_MEMORY")

    def _path(self) -> Path:
        return self.directory / f"{os.getpid() & 0xFFFF:04x}{next(self._names):04x}"

    def _handle(self, memory: _Memory) -> bytes:
        return HANDLE.pack(memory.path.name.encode(), memory.nbytes)

    def _opened(self, handle: bytes) -> _Memory:
        name, nbytes = HANDLE.unpack(handle)
        path = self.directory / name.decode("ascii", "replace")
        if not path.exists() or path.stat().st_size != nbytes:
            raise GpuError("no such memory", "CUDA_ERROR_INVALID_HANDLE")
        for memory in self._memories.values():
            if memory.path == path:
                memory.opened += 1
                return memory
        return _Memory(path, 0)

    def _keep(self, memory: _Memory) -> int:
        self._memories[memory.address] = memory
        return memory.address

    def _event(self, memory: _Memory) -> int:
        handle = next(self._handles)
        self._events[handle] = _Event(memory)
        return handle

    def _stream(self, stream: int) -> _Stream:
        with self._lock:
            if stream not in self._streams and stream == 0:
                self._streams[0] = _Stream(eager=True)
            return self._streams[stream]

    def _await(self, event: _Event, number: int) -> None:
        if event.stream is not None:
            event.stream.want(event.position)
        deadline = time.monotonic() + WAIT_S_MAX
        while not event.happened(number):
            if time.monotonic() > deadline:
                self.wrong.append("an event that never happens")
                return
            if event.stream is None:
                time.sleep(POLL_S)  # another process's
            else:
                with event.stream.changed:
                    if not event.happened(number):
                        event.stream.changed.wait(POLL_S)

    def _pinned(self, address: int, nbytes: int) -> bool:
        with self._lock:
            ranges = [*self.registered.items()]
            ranges += [(a, len(memory)) for a, memory in self._allocated.items()]
            return any(a <= address and address + nbytes <= a + n for a, n in ranges)

    def _near(self, address: int, nbytes: int) -> int:
        if address < FAR:
            return address
        base, size = self.address_range(address)
        if address + nbytes > base + size:
            raise GpuError("beyond the allocation", "CUDA_ERROR_INVALID_VALUE")
        return address - FAR
