"""How tensors are spread: axes, requests to read, and the keys of parts."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any, ClassVar

from moonpool.compat.casting import Caster, i32, text
from moonpool.compat.records import Record, instance_of, list_of_records, optional
from moonpool.compat.tensor_format import AXES_MAX, KINDS, Axis, Meta, Shape

MANIFEST = "__parallelism_manifest"
WRITER_MANIFEST = "__writer_manifest"
_MANIFEST = struct.Struct("<4sHHIIiiQ8q")


class ParallelAxis(Record):
    """One axis: ``kind`` is dp, tp, ep or pp."""

    __slots__ = ()
    CASTS: ClassVar[dict[str, Caster]] = {
        "kind": text,
        "rank": i32,
        "size": i32,
        "split_dim": optional(i32),
        "expert_id": optional(i32),
        "stage_id": optional(i32),
    }

    @classmethod
    def defaults(cls) -> dict[str, Any]:
        """Return the fields of a new object."""
        nothing = dict.fromkeys(("split_dim", "expert_id", "stage_id"))
        return {"kind": "", "rank": 0, "size": 1, **nothing}


class TensorParallelism(Record):
    """All axes along which a tensor is spread."""

    __slots__ = ()
    CASTS: ClassVar[dict[str, Caster]] = {"axes": list_of_records(ParallelAxis)}

    @classmethod
    def defaults(cls) -> dict[str, Any]:
        """Return the fields of a new object."""
        return {"axes": []}


MODES = ("as_stored", "shard", "full")


def _mode(value: Any) -> str:
    found = text(value)
    if found not in MODES:
        raise RuntimeError("Unsupported ReadTarget mode")
    return found


class ReadTarget(Record):
    """What a reader wants: the object as it is, a shard of another split, or the whole."""

    __slots__ = ()
    CASTS: ClassVar[dict[str, Caster]] = {
        "mode": _mode,
        "parallelism": optional(instance_of(TensorParallelism)),
    }

    @classmethod
    def defaults(cls) -> dict[str, Any]:
        """Return the fields of a new object."""
        return {"mode": "as_stored", "parallelism": None}


def axes_of(parallelism: Any) -> tuple[Axis, ...] | None:
    """Return the axes of a split; None for what is none or cannot be stored."""
    if not isinstance(parallelism, TensorParallelism):
        return None
    found = [_axis(each) for each in parallelism.axes]
    axes = tuple(each for each in found if each is not None)
    splits = sum(each.split_dim is not None for each in axes)
    kinds = {each.kind for each in axes}
    good = 0 < len(axes) == len(found) <= AXES_MAX and splits <= 1 and len(kinds) == len(axes)
    return axes if good else None


def _axis(axis: ParallelAxis) -> Axis | None:
    kind = axis.kind.lower()
    if kind not in KINDS or not 0 <= axis.rank < axis.size:
        return None
    if (kind == "tp") != (axis.split_dim is not None):
        return None
    number = {"ep": axis.expert_id, "pp": axis.stage_id}.get(kind)
    return Axis(kind, axis.rank, axis.size, axis.split_dim, number)


def shard_key(key: str, rank: int) -> str:
    """Return the key of a tensor-parallel rank's part."""
    return f"{key}_tp_{rank}"


def key_of(key: str, axes: tuple[Axis, ...]) -> str:
    """Return the key of the part at these axes."""
    if len(axes) == 1 and axes[0].kind == "tp":
        return shard_key(key, axes[0].rank)
    for axis in axes:
        key += f"__{axis.kind}_{axis.rank}of{axis.size}"
        if axis.kind == "tp":
            key += f"_sd{axis.split_dim}"
        elif axis.kind == "ep" and axis.number is not None:
            key += f"_eid{axis.number}"
        elif axis.kind == "pp" and axis.number is not None:
            key += f"_sid{axis.number}"
    return key


def split_axis(axes: tuple[Axis, ...]) -> Axis | None:
    """Return the axis that splits a dimension."""
    return next((each for each in axes if each.split_dim is not None), None)


def scaled(shape: Shape, dim: int, count: int) -> Shape:
    """Return a shape with so many times as much in one dimension."""
    return (*shape[:dim], shape[dim] * count, *shape[dim + 1 :])


def with_width(axes: tuple[Axis, ...], part: Shape) -> tuple[Axis, ...]:
    """Return axes that say how wide this part is."""
    return tuple(
        each if each.split_dim is None else replace(each, width=part[each.split_dim])
        for each in axes
    )


def manifest(meta: Meta, dim: int, size: int) -> bytes:
    """Return the object that says how a tensor was spread."""
    shape = [*meta.whole, *[-1] * (8 - len(meta.whole))]
    return _MANIFEST.pack(
        b"NAMW", 1, _MANIFEST.size, meta.type, len(meta.whole), dim, size, 0, *shape
    )


def split_of(content: bytes) -> tuple[int, int] | None:
    """Return (dimension, parts) of such an object, None for what is none."""
    if len(content) != _MANIFEST.size:
        return None
    found = _MANIFEST.unpack(content)
    return (found[5], found[6]) if found[0] == b"NAMW" and found[6] > 0 else None
