"""Memory of the host, by address, and binding threads to a NUMA node."""

from __future__ import annotations

import ctypes
import logging
import mmap
import os
import threading
from pathlib import Path

from moonpool.compat.casting import Parameter, call, i32, refusal, u64

NODES = Path("/sys/devices/system/node")
FREED, NOT_OURS = 0, -1
_log = logging.getLogger(__name__)


class MooncakeHostMemAllocator:
    """Allocates pages of shared memory and frees them, by address."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: dict[int, tuple[mmap.mmap, ctypes.Array[ctypes.c_char]]] = {}

    @call(Parameter("arg0", u64))
    def alloc(self, nbytes: int) -> int:
        """Return the address of so many bytes. Raises RuntimeError if there are none."""
        try:
            area = mmap.mmap(-1, nbytes)
        except (OSError, ValueError, OverflowError) as error:
            raise RuntimeError(f"{nbytes} bytes cannot be mapped: {error}") from None
        view = (ctypes.c_char * nbytes).from_buffer(area)
        address = ctypes.addressof(view)
        with self._lock:
            self._held[address] = area, view
        return address

    @call(Parameter("arg0", u64))
    def free(self, address: int) -> int:
        """Free memory by its first address; return 0, or -1 for what was not allocated here."""
        with self._lock:
            return NOT_OURS if self._held.pop(address, None) is None else FREED


_SHARED = MooncakeHostMemAllocator()
_ALLOC = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t)(_SHARED.alloc)
_FREE = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda address: _SHARED.free(address or 0) and None)


def get_alloc_func_addr() -> int:
    """Return the address of a C function that allocates."""
    return ctypes.cast(_ALLOC, ctypes.c_void_p).value or 0


def get_free_func_addr() -> int:
    """Return the address of a C function that frees what that one allocated."""
    return ctypes.cast(_FREE, ctypes.c_void_p).value or 0


def bind_to_numa_node(node: int) -> None:
    """Let this thread run on the processors of a NUMA node only; a node that is not there is
    warned of."""
    try:
        number = i32(node)
    except TypeError:
        raise TypeError(refusal("bind_to_numa_node", (Parameter("node", i32),))) from None
    try:
        listed = (NODES / f"node{number}" / "cpulist").read_text().strip()
        os.sched_setaffinity(0, _cpus(listed))
    except (OSError, ValueError) as error:
        _log.warning("NUMA node %d: %s", number, error)


def _cpus(listed: str) -> set[int]:
    """Return the numbers of a list such as "0-3,8"."""
    found: set[int] = set()
    for part in listed.split(","):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return found
