"""What arguments the Mooncake API takes: its binding's rules, and TypeError where they are broken.

A call is declared with a caster for each of its parameters; the function below it is then called
with converted values only. Numbers that do not fit are TypeErrors too, as they are there.
"""

from __future__ import annotations

import functools
import operator
from array import array
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from moonpool.transport.base import I64, U64

Caster = Callable[[Any], Any]
REQUIRED: Any = object()
U64_MAX = (1 << 64) - 1
_KINDS: tuple[type, ...] = (type({}.keys()), type({}.values()), type({}.items()), map, zip)


class CastError(TypeError):
    """An argument is of no type that the parameter takes."""


class Ragged(NamedTuple):
    """A list of lists of numbers: all of them, (p,), and where each list begins, (n + 1,)."""

    flat: U64
    starts: I64

    @property
    def counts(self) -> I64:
        """How many numbers each list has, (n,)."""
        return np.diff(self.starts)


def text(value: Any) -> str:
    """str that UTF-8 can express, or bytes."""
    if type(value) is str or isinstance(value, str):
        if not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError:
                raise CastError from None
        return str(value)
    if isinstance(value, bytes | bytearray):
        return bytes(value).decode("utf-8", "surrogateescape")
    raise CastError


def _integer(value: Any) -> int:
    if type(value) is int:
        return value
    if isinstance(value, float):
        raise CastError
    try:
        return operator.index(value)
    except TypeError:
        pass
    try:
        return int(value) if hasattr(value, "__int__") else _fail()
    except (TypeError, ValueError, OverflowError):
        raise CastError from None


def _fail() -> int:
    raise CastError


def _bounded(low: int, high: int) -> Caster:
    def cast(value: Any) -> int:
        number = _integer(value)
        if not low <= number <= high:
            raise CastError
        return number

    return cast


u64 = _bounded(0, U64_MAX)
i64 = _bounded(-(1 << 63), (1 << 63) - 1)
u32 = _bounded(0, (1 << 32) - 1)
i32 = _bounded(-(1 << 31), (1 << 31) - 1)


def boolean(value: Any) -> bool:
    """Anything that has a truth value of its own; None is False."""
    if value is None or isinstance(value, bool):
        return bool(value)
    if not hasattr(type(value), "__bool__"):
        raise CastError
    try:
        return bool(value)
    except Exception:  # noqa: BLE001 - whatever the caller's class raises
        raise CastError from None


def anything(value: Any) -> Any:
    """Any object."""
    return value


def buffer(value: Any) -> memoryview:
    """Whatever has a contiguous buffer of bytes."""
    try:
        view = memoryview(value)
    except TypeError:
        raise CastError from None
    return view


def plain_list(value: Any) -> list[Any]:
    """A list, and nothing like one."""
    if not isinstance(value, list):
        raise CastError
    return value


def items_of(value: Any) -> Sequence[Any]:
    """What the binding makes a vector of."""
    if type(value) is list or type(value) is tuple:
        return value
    if isinstance(value, str | bytes):
        raise CastError
    if isinstance(value, set | frozenset | _KINDS) or hasattr(value, "send"):
        return list(value)
    if isinstance(value, dict) or not hasattr(type(value), "__getitem__"):
        raise CastError
    try:
        len(value)
        return list(value)
    except TypeError:
        raise CastError from None


def texts(value: Any) -> list[str]:
    """A list of keys."""
    items = items_of(value)
    if set(map(type, items)) <= {str} and "".join(items).isascii():
        return list(items)
    return [text(each) for each in items]


def list_of(one: Caster) -> Caster:
    """A list of what another caster takes."""

    def cast(value: Any) -> list[Any]:
        return [one(each) for each in items_of(value)]

    return cast


def numbers(value: Any) -> U64:
    """A list of numbers of 64 bits, as an array."""
    return _array(items_of(value))


def ragged(value: Any) -> Ragged:
    """A list of lists of such numbers."""
    rows = items_of(value)
    if not set(map(type, rows)) <= {list, tuple}:
        rows = [items_of(each) for each in rows]
    starts = np.zeros(len(rows) + 1, np.int64)
    np.cumsum([len(row) for row in rows], out=starts[1:])
    return Ragged(_array(list(chain.from_iterable(rows))), starts)


def ragged_rows(value: Any) -> list[list[int]]:
    """A list of lists of such numbers, as lists."""
    return [numbers(row).tolist() for row in items_of(value)]


def _array(items: Sequence[Any]) -> U64:
    try:
        found = array("Q", items)
    except (TypeError, OverflowError):
        found = array("Q", [u64(each) for each in items])
    result: npt.NDArray[np.uint64] = np.frombuffer(found, np.uint64)
    return result


class Parameter(NamedTuple):
    """A parameter: its name, what it takes, and its value if it is not given."""

    name: str
    cast: Caster
    default: Any = REQUIRED


def call(*parameters: Parameter) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Declare a method of the API. Its errors are described by ``Refused`` of the class."""
    count = len(parameters)
    casts = tuple(each.cast for each in parameters)
    defaults = tuple(each.default for each in parameters)
    required = sum(each is REQUIRED for each in defaults)
    ready = tuple(d if d is REQUIRED else cast(d) for d, cast in zip(defaults, casts, strict=True))
    # Those that the binding did not name can only be given by place.
    places = {p.name: i for i, p in enumerate(parameters) if not p.name.startswith("arg")}

    def declare(function: Callable[..., Any]) -> Callable[..., Any]:
        name = function.__name__

        def bound(args: tuple[Any, ...], named: dict[str, Any]) -> Sequence[Any]:
            found = [*args, *defaults[len(args) :]]
            for key, value in named.items():
                place = places.get(key, -1)
                if place < len(args):
                    raise CastError
                found[place] = value
            return found

        @functools.wraps(function)
        def method(self: Any, *args: Any, **named: Any) -> Any:
            given = len(args)
            try:
                if named or not required <= given <= count:
                    if given > count:
                        raise CastError
                    args = tuple(bound(args, named))
                    if any(each is REQUIRED for each in args[:required]):
                        raise CastError
                values = [cast(value) for cast, value in zip(casts, args, strict=False)]
            except CastError:
                raise TypeError(refusal(name, parameters)) from None
            return function(self, *values, *ready[len(values) :])

        return method

    return declare


def refusal(name: str, parameters: Sequence[Parameter]) -> str:
    """Return what the TypeError of a call with wrong arguments says."""
    shown = ", ".join(
        each.name if each.default is REQUIRED else f"{each.name}=..." for each in parameters
    )
    return f"{name}(): incompatible function arguments; supported: {name}({shown})"
