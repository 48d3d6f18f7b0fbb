"""A mapped file that is cut short, or whose file system is full: an error instead of SIGBUS.

Touching a page that is not there any more, or that cannot be had, raises SIGBUS in the middle of a
copy. The handler puts zero pages of this process in the place of the rest of the segment, so that
the copy can end, and marks the segment as lost; whoever used it finds the mark and fails. Faults
elsewhere go to whoever handled the signal before. A handler that is installed later takes
precedence, and then the signal ends the process as it would without this module.
"""

from __future__ import annotations

import ctypes
import logging
import mmap
import signal
import threading
import weakref
from typing import Any

from moonpool.transport import native

_log = logging.getLogger(__name__)

_ADDRESS_AT = 16
"""Of ``si_addr`` in ``siginfo_t``, on 64-bit Linux."""
_SA_SIGINFO, _SA_RESTART = 0x4, 0x10000000
_PROT = mmap.PROT_READ | mmap.PROT_WRITE
_FLAGS = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x10 | 0x4000  # MAP_FIXED, MAP_NORESERVE


class _Action(ctypes.Structure):
    """struct sigaction of the C library."""

    _fields_ = (
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_ulong * (128 // ctypes.sizeof(ctypes.c_ulong))),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


class Watch:
    """The memory of one mapped segment; ``lost`` once a page of it could not be had."""

    __slots__ = ("address", "end", "lost")

    def __init__(self, address: int, nbytes: int) -> None:
        self.address = address
        self.end = address + nbytes
        self.lost = False


_mmap: Any = native.libc.mmap
_mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t) + 3 * (ctypes.c_int,) + (ctypes.c_long,)
_mmap.restype = ctypes.c_void_p
_sigaction: Any = native.libc.sigaction
_sigaction.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)

_lock = threading.Lock()
_watches: tuple[Watch, ...] = ()
_before = _Action()
_installed = False


def watch(mapping: mmap.mmap, address: int, nbytes: int) -> Watch:
    """Guard a file that is mapped there for as long as the mapping lives."""
    global _watches
    found = Watch(address, nbytes)
    with _lock:
        _watches = (*(each for each in _watches if each.end > each.address), found)
        _install()
    weakref.finalize(mapping, _forget, found).atexit = False
    return found


def _forget(gone: Watch) -> None:
    gone.end = gone.address  # covers nothing; taken out when the next one comes


def _install() -> None:
    global _installed
    if _installed:
        return
    action = _Action(
        handler=ctypes.cast(_handler, ctypes.c_void_p).value, flags=_SA_SIGINFO | _SA_RESTART
    )
    if _sigaction(signal.SIGBUS, ctypes.addressof(action), ctypes.addressof(_before)) == 0:
        _installed = True
    else:
        _log.warning("segments that are cut short will end the process: no handler for SIGBUS")


def _on_fault(_number: int, info: int, _context: int) -> None:
    address = ctypes.c_uint64.from_address(info + _ADDRESS_AT).value
    for each in _watches:
        if each.address <= address < each.end:
            each.lost = True
            page = address - address % mmap.PAGESIZE
            if _mmap(page, each.end - page, _PROT, _FLAGS, -1, 0) == page:
                return
    _give_back()  # the instruction is tried again, with whatever handled the signal before


def _give_back() -> None:
    global _installed
    _sigaction(signal.SIGBUS, ctypes.addressof(_before), None)
    _installed = False


_handler = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)(_on_fault)
