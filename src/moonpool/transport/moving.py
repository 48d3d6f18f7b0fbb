"""The compiled loop between a socket and memory: moves a step and hashes it while it is in the
cache, step after step, without the GIL. Needs Numba; kernels.py loads it.
"""

from __future__ import annotations

import importlib
from typing import Any

import numba
import numpy as np
from numba import types

from moonpool.transport import native

STEP_BYTES = 256 * 1024
"""Moved and hashed in turn; less than a core's own cache."""
IOVECS_MAX = 1024
DONE, SLICE_OVER, STOPPED = 0, 1, 2

_binding = importlib.import_module("llvmlite.binding")
_BOUND = {
    "moonpool_memmove": native.memmove,
    "moonpool_xxh3_reset": native.xxh3_reset,
    "moonpool_xxh3_update": native.xxh3_update,
    "moonpool_xxh3_digest": native.xxh3_digest,
    "moonpool_sendmsg": native.libc.sendmsg,
    "moonpool_recvmsg": native.libc.recvmsg,
    "moonpool_clock": native.libc.clock_gettime,
    "moonpool_errno": getattr(native.libc, "__errno_location", None),
}
for _name, _entry in _BOUND.items():
    if not native.pointer(_entry):
        raise ImportError(f"no C function for {_name}")
    _binding.add_symbol(_name, native.pointer(_entry))

_word, _int = types.uint64, types.int32
_memmove: Any = types.ExternalFunction("moonpool_memmove", _word(_word, _word, _word))
_reset: Any = types.ExternalFunction("moonpool_xxh3_reset", _int(_word))
_update: Any = types.ExternalFunction("moonpool_xxh3_update", _int(_word, _word, _word))
_digest: Any = types.ExternalFunction("moonpool_xxh3_digest", _word(_word))
_sendmsg: Any = types.ExternalFunction("moonpool_sendmsg", types.int64(_int, _word, _int))
_recvmsg: Any = types.ExternalFunction("moonpool_recvmsg", types.int64(_int, _word, _int))
_clock: Any = types.ExternalFunction("moonpool_clock", _int(_int, _word))
_errno: Any = types.ExternalFunction("moonpool_errno", _word())

_CLOCK_MONOTONIC = 1
_VECTORS, _COUNT = 2, 3
"""Words of struct msghdr: where its iovecs are, and how many."""
_TIME, _ERROR = 8, 10
_HEADER_WORDS = 16
AT, OBJECT, ERRNO = 0, 1, 2
"""Numbers of ``progress``: the next iovec, the object it belongs to, why the loop stopped."""


def _now(header: Any, address: Any) -> Any:
    _clock(np.int32(_CLOCK_MONOTONIC), address + np.uint64(8 * _TIME))
    return np.int64(header[_TIME]) * np.int64(1_000_000_000) + np.int64(header[_TIME + 1])


def _gathered(vectors: Any, at: Any, end: Any) -> Any:
    """Return how many iovecs make a step, and by how much the last reaches beyond it."""
    count, total, step = np.int64(0), np.uint64(0), np.uint64(STEP_BYTES)
    while at + count < end and count < IOVECS_MAX and total < step:
        total += vectors[2 * (at + count) + 1]
        count += 1
    return count, total - min(total, step)


def _passed(vectors: Any, at: Any, end: Any, starts: Any, sums: Any, place: Any, state: Any) -> Any:
    """Skip empty iovecs and finish the objects that end here; return the new iovec and object."""
    while place < len(sums):
        if at == starts[place + 1]:
            sums[place] = _digest(state)
            _reset(state)
            place += 1
        elif at < end and vectors[2 * at + 1] == 0:
            at += 1
        else:
            break
    return at, place


_now_inline: Any = numba.njit(_now)
_step: Any = numba.njit(_gathered)
_pass: Any = numba.njit(_passed)


def _move(
    receiving: Any,
    descriptor: Any,
    flags: Any,
    vectors: Any,
    vectors_at: Any,
    starts: Any,
    sums: Any,
    state: Any,
    header: Any,
    header_at: Any,
    progress: Any,
    until: Any,
) -> Any:
    """Move what is left of ``vectors`` and hash it; return DONE, SLICE_OVER at the time ``until``
    (ns), or STOPPED when a call moved nothing, with ``progress[ERRNO]`` 0 at the end of file."""
    end = starts[-1]
    at, place = _pass(vectors, progress[AT], end, starts, sums, progress[OBJECT], state)
    result = np.int64(DONE)
    while at < end:
        if _now_inline(header, header_at) >= until:
            result = np.int64(SLICE_OVER)
            break
        count, over = _step(vectors, at, end)
        last = 2 * (at + count) - 1
        vectors[last] -= over
        header[_VECTORS] = vectors_at + np.uint64(16 * at)
        header[_COUNT] = np.uint64(count)
        if receiving:
            moved = _recvmsg(descriptor, header_at, flags)
        else:
            moved = _sendmsg(descriptor, header_at, flags)
        if moved < 0:
            _memmove(header_at + np.uint64(8 * _ERROR), _errno(), np.uint64(4))
        vectors[last] += over
        if moved <= 0:
            progress[ERRNO] = np.int64(header[_ERROR]) if moved < 0 else np.int64(0)
            result = np.int64(STOPPED)
            break
        left = np.uint64(moved)
        while left > 0:
            n = min(left, vectors[2 * at + 1])
            _update(state, vectors[2 * at], n)
            vectors[2 * at] += n
            vectors[2 * at + 1] -= n
            left -= n
            at, place = _pass(vectors, at, end, starts, sums, place, state)
    progress[AT], progress[OBJECT] = at, place
    return result


_words = types.uint64[::1]
_numbers = types.int64[::1]
_arguments = (
    types.boolean,
    _int,
    _int,
    _words,
    _word,
    _numbers,
    _words,
    _word,
    _words,
    _word,
    _numbers,
    types.int64,
)


def _compiled() -> Any:
    signature = types.int64(*_arguments)
    try:
        return numba.njit(signature, nogil=True, cache=True)(_move)
    except RuntimeError:
        return numba.njit(signature, nogil=True)(_move)


_compiled_move: Any = _compiled()


class Move:
    """The way of a batch's bytes between a socket and memory, in slices of time.

    vectors: struct iovec of the pieces, (p, 2), which is changed; starts: where each object's
    begin, (n + 1,), from 0; sums: filled with xxh3_64 of each object, (n,).
    """

    def __init__(self, vectors: Any, starts: Any, sums: Any) -> None:
        self._vectors, self._starts, self._sums = vectors.reshape(-1), starts, sums
        self._state = np.zeros(native.XXH3_STATE_BYTES + 64, np.uint8)
        self._state_at = native.state_address(self._state)
        self._header = np.zeros(_HEADER_WORDS, np.uint64)
        self._progress = np.zeros(3, np.int64)
        self._addresses = int(vectors.ctypes.data), int(self._header.ctypes.data)
        if native.xxh3_reset is not None:
            native.xxh3_reset(self._state_at)

    @property
    def errno(self) -> int:
        """Why the last call STOPPED; 0: the peer closed the connection."""
        return int(self._progress[ERRNO])

    def run(self, receiving: bool, descriptor: int, flags: int, until_ns: int) -> int:
        """Go on until all is moved or the monotonic clock says ``until_ns``; return DONE,
        SLICE_OVER or STOPPED. One system call may take as long as the socket's own limit."""
        vectors_at, header_at = self._addresses
        return int(
            _compiled_move(
                receiving,
                descriptor,
                flags,
                self._vectors,
                vectors_at,
                self._starts,
                self._sums,
                self._state_at,
                self._header,
                header_at,
                self._progress,
                until_ns,
            )
        )
