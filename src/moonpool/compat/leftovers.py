"""Names of ``mooncake.store`` that programs rarely use."""

from __future__ import annotations

from typing import Any

import numpy as np

from moonpool.compat.codes import INTERNAL
from moonpool.compat.tensor_format import (
    HEADER_BYTES,
    decode,
    elements_of,
    encode,
    meta_of,
    tensor_of,
)


class MooncakeDistributedNoFRegister:
    """Registers NVMe-oF segments with Mooncake's master. Moonpool has none: a node's disk takes
    their place."""

    def real_register(self, *_: Any) -> int:
        """Return -1."""
        return INTERNAL

    def real_unregister_by_endpoint(self, *_: Any) -> int:
        """Return -1."""
        return INTERNAL


def serialize_tensor(tensor: Any) -> tuple[bytes, int, int, Any]:
    """Return a tensor's header, its elements' address and bytes, and what keeps them. Raises
    ValueError."""
    meta = meta_of(tensor)
    if meta is None:
        raise ValueError("no tensor that can be stored")
    kept = tensor.detach().contiguous().cpu()
    elements = elements_of(kept)
    return encode(meta), int(elements.ctypes.data), meta.nbytes, kept


def deserialize_tensor(content: Any) -> Any:
    """Return the tensor of a header and elements. Raises ValueError."""
    meta = decode(content)
    if meta is None:
        raise ValueError("invalid serialized Mooncake tensor payload")
    return tensor_of(meta, np.frombuffer(content, np.uint8)[HEADER_BYTES:].copy())


def tensor_metadata_size() -> int:
    """Return the bytes of a header."""
    return HEADER_BYTES
