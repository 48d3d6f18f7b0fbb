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

_words = types.uint64[::1]
_numbers = types.int64[::1]


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


def _scatter(addresses: Any, lengths: Any, starts: Any, sources: Any) -> None:
    """Copy one source per object to its pieces."""
    for i in range(len(sources)):
        at = sources[i]
        for p in range(starts[i], starts[i + 1]):
            _memmove(addresses[p], at, lengths[p])
            at += lengths[p]


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
scatter: Any = _compile(_scatter, _words, _words, _numbers, _words)
digest: Any = _compile(_hash, _words, _words, _numbers, _words, _word)
