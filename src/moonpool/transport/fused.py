"""Copy and hash in one pass, for Numba: each cache line is loaded once, hashed and stored.

XXH3's loop for long inputs, as its specification has it (default secret, seed 0), beside
non-temporal stores. Hashing first and copying after reads every line twice, the second time from
the cache, and leaves the memory idle meanwhile; in one pass the hash costs nothing that is seen.
"""

from __future__ import annotations

import importlib
import struct
from typing import Any

import numpy as np
from numba import types

LINE_BYTES = 64
LINES_PER_BLOCK = 16
LONG_BYTES = 241
"""XXH3 has other ways for shorter inputs."""
SECRET = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671f"
    "cb79e64eccc0e578825ad07dccff7221b8084674f743248ee03590e6813a264c"
    "3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8"
    "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364"
    "eac5ac8334d3ebc3c581a0fffa1363eb170ddd51b7f0da49d316552629d4689e"
    "2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e"
)
_P32_1, _P32_2, _P32_3 = 0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D
_P64_1, _P64_2, _P64_3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
_P64_4, _P64_5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5
START = struct.pack("<8Q", _P32_3, _P64_1, _P64_2, _P64_3, _P64_4, _P32_2, _P64_5, _P32_1)
SCRAMBLE_AT = len(SECRET) - LINE_BYTES
LAST_AT = SCRAMBLE_AT - 7
MERGE_AT = 11
SUM_FACTOR = np.uint64(_P64_1)
_AVALANCHE = 0x165667919E3779F9

_ir: Any = importlib.import_module("llvmlite.ir")
_intrinsic: Any = importlib.import_module("numba.extending").intrinsic
_word = types.uint64
_i32, _i64, _i128 = _ir.IntType(32), _ir.IntType(64), _ir.IntType(128)
_vector = _ir.VectorType(_i64, 8)


def _all(value: int) -> Any:
    return _ir.Constant(_vector, [value] * 8)


def _at(builder: Any, address: Any) -> Any:
    return builder.inttoptr(address, _vector.as_pointer())


def _hashed(builder: Any, state: Any, value: Any, secret: Any) -> Any:
    """Return the eight sums after a line."""
    key = builder.xor(value, secret)
    product = builder.mul(builder.and_(key, _all(0xFFFFFFFF)), builder.lshr(key, _all(32)))
    order = _ir.Constant(_ir.VectorType(_i32, 8), [1, 0, 3, 2, 5, 4, 7, 6])
    swapped = builder.shuffle_vector(value, _ir.Constant(_vector, _ir.Undefined), order)
    return builder.add(builder.add(state, swapped), product)


def _move_code(_context: Any, _to: Any, _from: Any, _lines: Any, _state: Any, _secret: Any) -> Any:
    """Copy lines to an aligned place past the cache, and hash them."""

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        to, source, lines, state, secret = arguments
        begin = builder.load(_at(builder, state), align=LINE_BYTES)
        before = builder.block
        loop = builder.function.append_basic_block("fused")
        after = builder.function.append_basic_block("fused.end")
        builder.cbranch(builder.icmp_unsigned("==", lines, _i64(0)), after, loop)
        builder.position_at_end(loop)
        i, sums = builder.phi(_i64), builder.phi(_vector)
        offset = builder.mul(i, _i64(LINE_BYTES))
        value = builder.load(_at(builder, builder.add(source, offset)), align=1)
        store = builder.store(value, _at(builder, builder.add(to, offset)), align=LINE_BYTES)
        store.set_metadata("nontemporal", builder.module.add_metadata([_i32(1)]))
        key = builder.load(_at(builder, builder.add(secret, builder.mul(i, _i64(8)))), align=1)
        new, following = _hashed(builder, sums, value, key), builder.add(i, _i64(1))
        i.add_incoming(_i64(0), before)
        i.add_incoming(following, loop)
        sums.add_incoming(begin, before)
        sums.add_incoming(new, loop)
        builder.cbranch(builder.icmp_unsigned("<", following, lines), loop, after)
        builder.position_at_end(after)
        end = builder.phi(_vector)
        end.add_incoming(begin, before)
        end.add_incoming(new, loop)
        builder.store(end, _at(builder, state), align=LINE_BYTES)
        return context.get_dummy_value()

    return types.void(_word, _word, _word, _word, _word), generate


def _line_code(_context: Any, _source: Any, _state: Any, _secret: Any) -> Any:
    """Hash one line that lies anywhere."""

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        source, state, secret = arguments
        place = _at(builder, state)
        value = builder.load(_at(builder, source), align=1)
        key = builder.load(_at(builder, secret), align=1)
        sums = _hashed(builder, builder.load(place, align=LINE_BYTES), value, key)
        builder.store(sums, place, align=LINE_BYTES)
        return context.get_dummy_value()

    return types.void(_word, _word, _word), generate


def _scramble_code(_context: Any, _state: Any, _secret: Any) -> Any:
    """Stir the eight sums after a block."""

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        state, secret = arguments
        place = _at(builder, state)
        sums = builder.load(place, align=LINE_BYTES)
        sums = builder.xor(sums, builder.lshr(sums, _all(47)))
        sums = builder.xor(sums, builder.load(_at(builder, secret), align=1))
        builder.store(builder.mul(sums, _all(_P32_1)), place, align=LINE_BYTES)
        return context.get_dummy_value()

    return types.void(_word, _word), generate


def _merge_code(_context: Any, _start: Any, _state: Any, _secret: Any) -> Any:
    """Return the hash from the eight sums."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        result, state, secret = arguments

        def mixed(number: int) -> Any:
            offset = _i64(8 * number)
            pointer = _i64.as_pointer()
            a = builder.load(builder.inttoptr(builder.add(state, offset), pointer))
            b = builder.load(builder.inttoptr(builder.add(secret, offset), pointer), align=1)
            return builder.zext(builder.xor(a, b), _i128)

        for pair in range(4):
            product = builder.mul(mixed(2 * pair), mixed(2 * pair + 1))
            high = builder.trunc(builder.lshr(product, _i128(64)), _i64)
            result = builder.add(result, builder.xor(builder.trunc(product, _i64), high))
        result = builder.xor(result, builder.lshr(result, _i64(37)))
        result = builder.mul(result, _i64(_AVALANCHE))
        return builder.xor(result, builder.lshr(result, _i64(32)))

    return _word(_word, _word, _word), generate


move: Any = _intrinsic(_move_code)
line: Any = _intrinsic(_line_code)
scramble: Any = _intrinsic(_scramble_code)
merge: Any = _intrinsic(_merge_code)
