"""The few C functions that move and hash bytes, by address: libc and the library of ``xxhash``.

All of them release the GIL. Addresses and lengths are plain integers; nothing here checks them.
"""

from __future__ import annotations

import ctypes
import importlib
import mmap
from collections.abc import Callable

import numpy as np
import xxhash

libc = ctypes.CDLL(None, use_errno=True)

memmove: Callable[[int, int, int], object] = ctypes.CFUNCTYPE(
    ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t
)(("memmove", libc))

MADV_POPULATE_READ = 22
MADV_POPULATE_WRITE = 23
XXH3_STATE_BYTES = 1024
"""Room for an XXH3 state (576 bytes, aligned to 64), with a margin for later versions."""

_SYMBOLS = ("XXH3_64bits_reset", "XXH3_64bits_update", "XXH3_64bits_digest", "XXH3_64bits")


def _open_xxh3() -> ctypes.CDLL | None:
    """Return the library with the XXH3 symbols, None where a build hides them."""
    try:
        extension = importlib.import_module("xxhash._xxhash")
        library = ctypes.CDLL(str(extension.__file__))
        for name in _SYMBOLS:
            getattr(library, name)
    except (ImportError, OSError, AttributeError):
        return None
    return library


def _function(name: str, result: type | None, *arguments: type) -> Callable[..., int] | None:
    """Return a function of the XXH3 library, the variant for this CPU where there is one."""
    if _xxh3 is None:
        return None
    symbol = name + "_dispatch" if hasattr(_xxh3, name + "_dispatch") else name
    function: Callable[..., int] = ctypes.CFUNCTYPE(result, *arguments)((symbol, _xxh3))
    return function


_xxh3 = _open_xxh3()
_P, _N = ctypes.c_void_p, ctypes.c_size_t
xxh3_reset = _function("XXH3_64bits_reset", ctypes.c_int, _P)
xxh3_update = _function("XXH3_64bits_update", ctypes.c_int, _P, _P, _N)
xxh3_digest = _function("XXH3_64bits_digest", ctypes.c_uint64, _P)
_xxh3_whole = _function("XXH3_64bits", ctypes.c_uint64, _P, _N)


def view(address: int, nbytes: int) -> memoryview:
    """Return the memory at an address as a writable view of bytes; it keeps nothing alive."""
    return memoryview((ctypes.c_char * nbytes).from_address(address)).cast("B")


def xxh3(address: int, nbytes: int) -> int:
    """Return xxh3_64 of the memory at an address."""
    if _xxh3_whole is None:
        return xxhash.xxh3_64_intdigest(view(address, nbytes))
    return _xxh3_whole(address, nbytes)


class Hasher:
    """xxh3_64 of memory that is given piece by piece."""

    def __init__(self) -> None:
        self._python = xxhash.xxh3_64() if xxh3_update is None else None
        self._state = np.zeros(XXH3_STATE_BYTES + 64, np.uint8)
        self._at = (self._state.ctypes.data + 63) // 64 * 64
        if xxh3_reset is not None:
            xxh3_reset(self._at)

    def update(self, address: int, nbytes: int) -> None:
        """Add the memory at an address."""
        if self._python is not None:
            self._python.update(view(address, nbytes))
        elif xxh3_update is not None:
            xxh3_update(self._at, address, nbytes)

    def digest(self) -> int:
        """Return the hash of all that was added."""
        if self._python is not None:
            return self._python.intdigest()
        return xxh3_digest(self._at) if xxh3_digest is not None else 0


def state_address(state: np.ndarray[tuple[int], np.dtype[np.uint8]]) -> int:
    """Return the aligned place for an XXH3 state inside a buffer of XXH3_STATE_BYTES + 64."""
    return (int(state.ctypes.data) + 63) // 64 * 64


def pointer(function: Callable[..., object] | None) -> int:
    """Return the address of a C function; 0 for None."""
    if function is None:
        return 0
    return ctypes.cast(function, ctypes.c_void_p).value or 0  # type: ignore[arg-type]


_madvise = libc.madvise
_madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_madvise.restype = ctypes.c_int
_mincore = libc.mincore
_mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
_mincore.restype = ctypes.c_int


def populate(address: int, nbytes: int) -> int:
    """Touch pages for writing without changing them; return 0 or an errno."""
    return advise(address, nbytes, MADV_POPULATE_WRITE)


def prefault(address: int, nbytes: int) -> int:
    """Enter pages that are there into this process's page table; return 0 or an errno."""
    return advise(address, nbytes, MADV_POPULATE_READ)


def is_resident(address: int, nbytes: int) -> bool:
    """Tell whether all pages of a part of a mapping are in memory; it starts at a page.

    The last page is asked for first: the kernel looks up each page that this process has not
    entered yet, and pages come in order, so that is mostly enough.
    """
    last = (nbytes - 1) // mmap.PAGESIZE * mmap.PAGESIZE
    return _are_resident(address + last, nbytes - last) and _are_resident(address, nbytes)


def _are_resident(address: int, nbytes: int) -> bool:
    pages = np.zeros(-(-nbytes // mmap.PAGESIZE), np.uint8)
    return _mincore(address, nbytes, pages.ctypes.data) == 0 and bool((pages & 1).all())


def advise(address: int, nbytes: int, advice: int) -> int:
    """Call madvise; return 0 or an errno."""
    return 0 if _madvise(address, nbytes, advice) == 0 else ctypes.get_errno()
