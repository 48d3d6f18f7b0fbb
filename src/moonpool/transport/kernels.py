"""The compiled copies: loops over pieces that call memmove and XXH3 without the GIL.

Importing this module needs Numba and compiles (or loads from Numba's cache); see copy.py, which
does that in the background. The C functions are bound under names of our own, so that what Numba
caches on disk does not hold an address of this process.
"""

from __future__ import annotations

import importlib
from typing import Any

import numba
import numpy as np
from numba import types

from moonpool.transport import fused, moving, native

STEP_BYTES = 256 * 1024
"""Copied and hashed in turn, so that the hash reads from the cache."""
STREAM_PIECE_BYTES_MIN = 1024
LINE_BYTES = 64

_binding = importlib.import_module("llvmlite.binding")
_BOUND = {
    "moonpool_memmove": native.memmove,
    "moonpool_xxh3_reset": native.xxh3_reset,
    "moonpool_xxh3_update": native.xxh3_update,
    "moonpool_xxh3_digest": native.xxh3_digest,
}
for _name, _entry in _BOUND.items():
    if not native.pointer(_entry):
        raise ImportError(f"no C function for {_name}")
    _binding.add_symbol(_name, native.pointer(_entry))

_word = types.uint64
_memmove: Any = types.ExternalFunction("moonpool_memmove", _word(_word, _word, _word))
_reset: Any = types.ExternalFunction("moonpool_xxh3_reset", types.int32(_word))
_update: Any = types.ExternalFunction("moonpool_xxh3_update", types.int32(_word, _word, _word))
_digest: Any = types.ExternalFunction("moonpool_xxh3_digest", _word(_word))

_ir: Any = importlib.import_module("llvmlite.ir")
_intrinsic: Any = importlib.import_module("numba.extending").intrinsic
_inline: Any = numba.njit(inline="always")
_SUMS_AT = native.XXH3_STATE_BYTES
_START_AT = _SUMS_AT + LINE_BYTES
_SECRET_AT = _START_AT + LINE_BYTES
_STATE_BYTES = _SECRET_AT + len(fused.SECRET)
_words = types.uint64[::1]
_numbers = types.int64[::1]


def _lines_code(_context: Any, _to: Any, _from: Any, _lines: Any) -> Any:
    """Copy whole cache lines to an aligned place, past the cache (non-temporal stores)."""

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        to, source, lines = arguments
        word = _ir.IntType(64)
        line = _ir.VectorType(word, LINE_BYTES // 8).as_pointer()
        before = builder.block
        loop = builder.function.append_basic_block("stream")
        after = builder.function.append_basic_block("streamed")
        builder.cbranch(builder.icmp_unsigned("==", lines, word(0)), after, loop)
        builder.position_at_end(loop)
        i = builder.phi(word)
        at = builder.mul(i, word(LINE_BYTES))
        value = builder.load(builder.inttoptr(builder.add(source, at), line), align=1)
        store = builder.store(value, builder.inttoptr(builder.add(to, at), line), align=LINE_BYTES)
        store.set_metadata("nontemporal", builder.module.add_metadata([_ir.IntType(32)(1)]))
        following = builder.add(i, word(1))
        i.add_incoming(word(0), before)
        i.add_incoming(following, loop)
        builder.cbranch(builder.icmp_unsigned("<", following, lines), loop, after)
        builder.position_at_end(after)
        return context.get_dummy_value()

    return types.void(_word, _word, _word), generate


_stream_lines: Any = _intrinsic(_lines_code)


def _fence_code(_context: Any) -> Any:
    """Let all stores so far be seen before any that follow."""

    def generate(context: Any, builder: Any, _signature: Any, _arguments: Any) -> Any:
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), generate


_fence: Any = _intrinsic(_fence_code)


def _stream_code(to: Any, source: Any, n: Any) -> None:
    """Copy past the cache: a large batch is not read again soon, and this way the old contents
    of the place written to are not read from memory either."""
    line = np.uint64(LINE_BYTES)
    if n < np.uint64(STREAM_PIECE_BYTES_MIN):
        _memmove(to, source, n)
        return
    head = (line - (to & (line - np.uint64(1)))) & (line - np.uint64(1))
    _memmove(to, source, head)
    lines = (n - head) // line
    _stream_lines(to + head, source + head, lines)
    done = head + lines * line
    _memmove(to + done, source + done, n - done)


_stream: Any = _inline(_stream_code)


def _gather(addresses: Any, lengths: Any, starts: Any, targets: Any, sums: Any, state: Any) -> None:
    """Copy pieces to one target per object and hash what arrived there."""
    for i in range(len(targets)):
        sums[i] = _gather_one(addresses, lengths, starts[i], starts[i + 1], targets[i], state)


def _gather_one_code(
    addresses: Any, lengths: Any, first: Any, last: Any, at: Any, state: Any
) -> Any:
    step = np.uint64(STEP_BYTES)
    _reset(state)
    hashed = at
    for p in range(first, last):
        source = addresses[p]
        left = lengths[p]
        while left > 0:
            n = min(left, step)
            _memmove(at, source, n)
            at += n
            source += n
            left -= n
            if at - hashed >= step:
                _update(state, hashed, at - hashed)
                hashed = at
    if at > hashed:
        _update(state, hashed, at - hashed)
    return _digest(state)


def _gather_past_cache(
    addresses: Any, lengths: Any, starts: Any, targets: Any, sums: Any, state: Any
) -> None:
    """Like _gather, for large batches: in one pass and past the cache."""
    for i in range(len(targets)):
        size = np.uint64(0)
        for p in range(starts[i], starts[i + 1]):
            size += lengths[p]
        first, last, target = starts[i], starts[i + 1], targets[i]
        if size < np.uint64(fused.LONG_BYTES) or target & np.uint64(LINE_BYTES - 1):
            sums[i] = _gather_one(addresses, lengths, first, last, target, state)
        else:
            sums[i] = _fuse_one(addresses, lengths, first, last, target, size, state)
    _fence()


def _fuse_one_code(
    addresses: Any, lengths: Any, first: Any, last: Any, target: Any, size: Any, state: Any
) -> Any:
    """Copy and hash line by line as the target has them; a line that pieces share is put together
    there and hashed from there."""
    sums = state + np.uint64(_SUMS_AT)
    secret = state + np.uint64(_SECRET_AT)
    whole, block = np.uint64(LINE_BYTES), np.uint64(fused.LINES_PER_BLOCK)
    _memmove(sums, state + np.uint64(_START_AT), whole)
    todo = (size - np.uint64(1)) // whole  # the last line has a rule of its own
    at, number = target, np.uint64(0)
    for p in range(first, last):
        source, left = addresses[p], lengths[p]
        begun = (at - target) & (whole - np.uint64(1))
        if begun:
            n = min(left, whole - begun)
            _memmove(at, source, n)
            at, source, left = at + n, source + n, left - n
            if begun + n == whole and todo:
                fused.line(at - whole, sums, secret + number * np.uint64(8))
                todo -= np.uint64(1)
                number += np.uint64(1)
        while number == block or (left >= whole and todo):
            if number == block:
                fused.scramble(sums, secret + np.uint64(fused.SCRAMBLE_AT))
                number = np.uint64(0)
                continue
            lines = min(min(left // whole, todo), block - number)
            fused.move(at, source, lines, sums, secret + number * np.uint64(8))
            n = lines * whole
            at, source, left = at + n, source + n, left - n
            todo -= lines
            number += lines
        _memmove(at, source, left)
        at += left
    fused.line(target + size - whole, sums, secret + np.uint64(fused.LAST_AT))
    return fused.merge(size * fused.SUM_FACTOR, sums, secret + np.uint64(fused.MERGE_AT))


_gather_one: Any = numba.njit(_gather_one_code)
_fuse_one: Any = numba.njit(_fuse_one_code)


def _collect(addresses: Any, lengths: Any, starts: Any, targets: Any) -> None:
    """Copy pieces to one target per object, past the cache, without a hash."""
    for i in range(len(targets)):
        at = targets[i]
        for p in range(starts[i], starts[i + 1]):
            _stream(at, addresses[p], lengths[p])
            at += lengths[p]
    _fence()


def _scatter(addresses: Any, lengths: Any, starts: Any, sources: Any) -> None:
    """Copy one source per object to its pieces."""
    for i in range(len(sources)):
        at = sources[i]
        for p in range(starts[i], starts[i + 1]):
            _memmove(addresses[p], at, lengths[p])
            at += lengths[p]


def _scatter_past_cache(addresses: Any, lengths: Any, starts: Any, sources: Any) -> None:
    """Like _scatter, for large batches."""
    for i in range(len(sources)):
        at = sources[i]
        for p in range(starts[i], starts[i + 1]):
            _stream(addresses[p], at, lengths[p])
            at += lengths[p]
    _fence()


def _hash(addresses: Any, lengths: Any, starts: Any, sums: Any, state: Any) -> None:
    """Hash each object's pieces in order."""
    for i in range(len(sums)):
        _reset(state)
        for p in range(starts[i], starts[i + 1]):
            _update(state, addresses[p], lengths[p])
        sums[i] = _digest(state)


def _compile(function: Any, *arguments: Any) -> Any:
    """Compile eagerly, with Numba's cache on disk where there is a place for it."""
    try:
        return numba.njit(types.void(*arguments), nogil=True, cache=True)(function)
    except RuntimeError:
        return numba.njit(types.void(*arguments), nogil=True)(function)


gather: Any = _compile(_gather, _words, _words, _numbers, _words, _words, _word)
gather_past_cache: Any = _compile(
    _gather_past_cache, _words, _words, _numbers, _words, _words, _word
)
collect: Any = _compile(_collect, _words, _words, _numbers, _words)
scatter: Any = _compile(_scatter, _words, _words, _numbers, _words)
scatter_past_cache: Any = _compile(_scatter_past_cache, _words, _words, _numbers, _words)
digest: Any = _compile(_hash, _words, _words, _numbers, _words, _word)

Move = moving.Move
DONE, STOPPED = moving.DONE, moving.STOPPED


def new_state() -> tuple[Any, int]:
    """Return memory for the state of one thread's hashing, and the address to hand on."""
    memory = np.zeros(_STATE_BYTES + LINE_BYTES, np.uint8)
    address = native.state_address(memory)
    at = address - int(memory.ctypes.data) + _START_AT
    constants = np.frombuffer(fused.START + fused.SECRET, np.uint8)
    memory[at : at + len(constants)] = constants
    return memory, address


def _check() -> None:
    """Refuse to be used if the hash of our own is not the library's."""
    source = np.arange(3 * 1024 + 70, dtype=np.uint64).astype(np.uint8)
    room = np.zeros(len(source) + LINE_BYTES, np.uint8)
    memory, state = new_state()
    sums = np.zeros(1, np.uint64)
    target = np.array([native.state_address(room)], np.uint64)
    for size in (241, 1024, 1025, len(source)):
        lengths = np.array([100, size - 100], np.uint64)
        addresses = np.array([0, 100], np.uint64) + np.uint64(source.ctypes.data)
        gather_past_cache(addresses, lengths, np.array([0, 2]), target, sums, state)
        if int(sums[0]) != native.xxh3(int(source.ctypes.data), size):
            raise ImportError("the compiled hash is wrong on this machine")
    del memory


_check()
