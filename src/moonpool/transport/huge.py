"""Huge pages for segments: mappings on their borders, and memory made of them.

A file in shared memory gets 4 KiB pages unless an administrator asks for more. Since Linux 6.1 a
process can have a range of it made of 2 MiB pages itself: fewer faults, fewer steps of address
translation for the processor and for GPUs. Where the kernel refuses, small pages do.
"""

from __future__ import annotations

import ctypes
import mmap
from typing import Any

from moonpool.transport import native

HUGE_BYTES = 2 * 1024 * 1024
ALIGN_FROM_BYTES = 64 * 1024 * 1024
"""Smaller mappings are not worth the care."""

_MADV_COLLAPSE = 25
_MAP_FIXED, _MAP_NORESERVE = 0x10, 0x4000
_FAILED = ctypes.c_void_p(-1).value

_mmap: Any = ctypes.CFUNCTYPE(
    ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, *3 * (ctypes.c_int,), ctypes.c_long
)(("mmap", native.libc))


def mapped(fd: int, nbytes: int, *, writable: bool) -> tuple[mmap.mmap, int]:
    """Map a file; return the mapping and where in it the file begins.

    A large file begins at an address that a huge page may have: only then can the processor's
    page table hold huge pages for it. Raises OSError, ValueError.
    """
    if nbytes >= ALIGN_FROM_BYTES:
        found = _aligned(fd, nbytes, writable=writable)
        if found is not None:
            return found
    access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
    return mmap.mmap(fd, nbytes, access=access), 0


def _aligned(fd: int, nbytes: int, *, writable: bool) -> tuple[mmap.mmap, int] | None:
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
    try:
        room = mmap.mmap(-1, nbytes + HUGE_BYTES, flags=flags)
    except OSError:  # address space is limited
        return None
    address = ctypes.addressof(ctypes.c_char.from_buffer(room))
    offset = -address % HUGE_BYTES
    access = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
    # In the place of a part of the room, with which it goes.
    got = _mmap(address + offset, nbytes, access, mmap.MAP_SHARED | _MAP_FIXED, fd, 0)
    if got in (None, _FAILED):
        return None
    return room, offset


def collapse(address: int, nbytes: int) -> int:
    """Make a range of a mapping that begins on a huge page's border of huge pages, as far as it
    holds whole ones, whatever is there already; return 0 or an errno.

    EINVAL: this kernel or this file system cannot; others: not all of it could be had.
    """
    whole = nbytes - nbytes % HUGE_BYTES
    if not whole:
        return 0
    for at in range(address, address + whole, HUGE_BYTES):
        # A range with nothing in it has nothing to collapse; one page is enough.
        code = native.populate(at, mmap.PAGESIZE)
        if code:
            return code
    return native.advise(address, whole, _MADV_COLLAPSE)
