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

from moonpool.transport import native

STEP_BYTES = 256 * 1024
"""Copied and hashed in turn, so that the hash reads from the cache."""
STREAM_STEP_BYTES = 128 * 1024
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
    step = np.uint64(STEP_BYTES)
    for i in range(len(targets)):
        _reset(state)
        at = targets[i]
        hashed = at
        for p in range(starts[i], starts[i + 1]):
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
        sums[i] = _digest(state)


def _gather_past_cache(
    addresses: Any, lengths: Any, starts: Any, targets: Any, sums: Any, state: Any
) -> None:
    """Hash pieces, which brings them into the cache, and copy them from there."""
    step = np.uint64(STREAM_STEP_BYTES)
    for i in range(len(targets)):
        _reset(state)
        at = targets[i]
        for p in range(starts[i], starts[i + 1]):
            source = addresses[p]
            left = lengths[p]
            while left > 0:
                n = min(left, step)
                _update(state, source, n)
                _stream(at, source, n)
                at += n
                source += n
                left -= n
        sums[i] = _digest(state)
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
scatter: Any = _compile(_scatter, _words, _words, _numbers, _words)
scatter_past_cache: Any = _compile(_scatter_past_cache, _words, _words, _numbers, _words)
digest: Any = _compile(_hash, _words, _words, _numbers, _words, _word)
