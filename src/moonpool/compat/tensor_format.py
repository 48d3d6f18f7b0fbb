"""Tensors as objects: a header of 304 bytes, as Mooncake's, and the elements.

Little endian: "NOOM", version, header's bytes; element type, dimensions, whether it is a shard;
where the elements begin and how many bytes they are; the shape of the whole and of this part, -1
behind the last dimension; and up to four axes along which the whole is spread. Torch is imported
when it is needed.
"""

from __future__ import annotations

import importlib
import logging
import struct
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

MAGIC: Final = b"NOOM"
HEADER = struct.Struct("<4sHHIIIIQQ8q8qQ")
AXIS = struct.Struct("<IIIIiiQ")
AXES_MAX: Final = 4
HEADER_BYTES: Final = HEADER.size + AXES_MAX * AXIS.size
DIMENSIONS_MAX: Final = 8
TYPES: Final = (
    ("float32", 4),
    ("float64", 8),
    ("int8", 1),
    ("uint8", 1),
    ("int16", 2),
    ("uint16", 2),
    ("int32", 4),
    ("uint32", 4),
    ("int64", 8),
    ("uint64", 8),
    ("bool", 1),
    ("float16", 2),
    ("bfloat16", 2),
    ("float8_e4m3fn", 1),
    ("float8_e5m2", 1),
)
KINDS: Final = ("dp", "tp", "ep", "pp")
_log = logging.getLogger(__name__)
Bytes = npt.NDArray[np.uint8]
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Axis:
    """One axis of a split: which part of how many; ``number`` is an expert's or a stage's."""

    kind: str
    rank: int
    size: int
    split_dim: int | None = None
    number: int | None = None
    width: int = 0


@dataclass(frozen=True)
class Meta:
    """What a header says: the element type's number, the shapes of the whole and of this part."""

    type: int
    whole: Shape
    part: Shape
    axes: tuple[Axis, ...] = field(default=())

    @property
    def nbytes(self) -> int:
        """Bytes of the elements."""
        return TYPES[self.type][1] * int(np.prod(self.part, dtype=np.int64))


def _torch() -> Any:
    try:
        return importlib.import_module("torch")
    except ImportError:
        _log.warning("tensors need torch, which is not installed")
        return None


def torch() -> Any:
    """Return torch, or raise RuntimeError if it is not installed."""
    found = _torch()
    if found is None:
        raise RuntimeError("tensors need torch, which is not installed")
    return found


def meta_of(tensor: Any) -> Meta | None:
    """Return what describes a tensor that is not split; None for what is none, or has a type or
    dimensions that cannot be stored."""
    library = _torch()
    if library is None or not isinstance(tensor, library.Tensor) or tensor.dim() > DIMENSIONS_MAX:
        return None
    name = str(tensor.dtype).removeprefix("torch.")
    number = next((i for i, each in enumerate(TYPES) if each[0] == name), -1)
    return None if number < 0 else Meta(number, tuple(tensor.shape), tuple(tensor.shape))


def elements_of(tensor: Any) -> Bytes:
    """Return a tensor's elements, in order, as bytes."""
    flat = tensor.detach().contiguous().cpu().reshape(-1)
    found: Bytes = flat.view(torch().uint8).numpy()
    return found


def tensor_of(meta: Meta, elements: Bytes) -> Any:
    """Return the tensor that shares memory with its elements."""
    library = torch()
    kind = getattr(library, TYPES[meta.type][0])
    if not elements.size:
        return library.empty(meta.part, dtype=kind)
    flat = library.from_numpy(elements).view(kind)
    return flat.reshape(meta.part) if meta.part else flat


def encode(meta: Meta) -> bytes:
    """Return the header."""
    shapes = [*_padded(meta.whole), *_padded(meta.part)]
    sizes = HEADER_BYTES, meta.nbytes
    axes = meta.axes
    head = HEADER.pack(
        MAGIC, 1, HEADER_BYTES, meta.type, len(meta.part), bool(axes), 0, *sizes, *shapes, len(axes)
    )
    packed = [
        AXIS.pack(
            KINDS.index(axis.kind),
            i,
            axis.rank,
            axis.size,
            -1 if axis.split_dim is None else axis.split_dim,
            axis.number or 0,
            axis.width,
        )
        for i, axis in enumerate(axes)
    ]
    return (head + b"".join(packed)).ljust(HEADER_BYTES, b"\0")


def _padded(shape: Shape) -> list[int]:
    return [*shape, *[-1] * (DIMENSIONS_MAX - len(shape))]


def decode(content: Any) -> Meta | None:
    """Return what the header in front of an object's bytes says; None if there is none or the
    object is not as large as it says."""
    if len(content) < HEADER_BYTES:
        return None
    found = HEADER.unpack_from(content)
    magic, version, header, number, dims, _, _, begin, nbytes = found[:9]
    if (magic, version, header, begin) != (MAGIC, 1, HEADER_BYTES, HEADER_BYTES):
        return None
    if number >= len(TYPES) or dims > DIMENSIONS_MAX or found[-1] > AXES_MAX:
        return None
    whole, part = found[9 : 9 + dims], found[17 : 17 + dims]
    if min((*whole, *part), default=0) < 0:
        return None
    axes = []
    for i in range(found[-1]):
        kind, _, rank, size, dim, other, width = AXIS.unpack_from(
            content, HEADER.size + i * AXIS.size
        )
        if kind >= len(KINDS):
            return None
        axes.append(Axis(KINDS[kind], rank, size, None if dim < 0 else dim, other, width))
    meta = Meta(number, whole, part, tuple(axes))
    return meta if meta.nbytes == nbytes == len(content) - HEADER_BYTES else None
