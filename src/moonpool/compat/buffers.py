"""Memory with an object's bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


class BufferHandle(np.ndarray):
    """Memory that holds an object; it lives as long as somebody refers to it."""

    def ptr(self) -> int:
        """Return its address."""
        return int(self.ctypes.data)

    def size(self) -> int:  # type: ignore[override]
        """Return its length in bytes."""
        return len(self)

    def __bool__(self) -> bool:
        return len(self) > 0

    def __repr__(self) -> str:
        return f"<mooncake.store.BufferHandle object, {len(self)} bytes>"


def handle_of(memory: npt.NDArray[np.uint8]) -> BufferHandle:
    """Return memory as a BufferHandle."""
    found: Any = memory.view(np.int8).view(BufferHandle)
    return found  # type: ignore[no-any-return]
