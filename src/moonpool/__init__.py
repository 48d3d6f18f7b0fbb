"""A shared KV-cache pool for LLM serving.

    from moonpool import Store

    with Store.connect("127.0.0.1:50051") as store:
        store.put("greeting", b"hello")

What is named in ``__all__`` is the public API; it is imported when it is first used, so that
``import moonpool`` itself costs next to nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from moonpool.client.async_store import AsyncStore
    from moonpool.client.store import Lease, Store
    from moonpool.core.keys import Key, fingerprint, key_of, pack
    from moonpool.core.messages import ObjectInfo, Status
    from moonpool.errors import (
        AlreadyExistsError,
        BufferAlreadyRegisteredError,
        BufferNotRegisteredError,
        BufferTooSmallError,
        ChecksumError,
        ConfigError,
        DeadlineError,
        IllegalClientError,
        InvalidArgumentError,
        InvalidKeyError,
        InvalidWriteError,
        LeasedError,
        LeaseExpiredError,
        MasterUnreachableError,
        MoonpoolError,
        NoSpaceError,
        NotFoundError,
        NotReadyError,
        ProtocolError,
        TransferError,
        ValueTooLargeError,
        VersionMismatchError,
    )
    from moonpool.transport.base import Pieces

__all__ = [
    "AlreadyExistsError",
    "AsyncStore",
    "BufferAlreadyRegisteredError",
    "BufferNotRegisteredError",
    "BufferTooSmallError",
    "ChecksumError",
    "ConfigError",
    "DeadlineError",
    "IllegalClientError",
    "InvalidArgumentError",
    "InvalidKeyError",
    "InvalidWriteError",
    "Key",
    "Lease",
    "LeaseExpiredError",
    "LeasedError",
    "MasterUnreachableError",
    "MoonpoolError",
    "NoSpaceError",
    "NotFoundError",
    "NotReadyError",
    "ObjectInfo",
    "Pieces",
    "ProtocolError",
    "Status",
    "Store",
    "TransferError",
    "ValueTooLargeError",
    "VersionMismatchError",
    "fingerprint",
    "key_of",
    "pack",
]

__version__ = "0.1.0"

_ELSEWHERE = {
    "AsyncStore": "moonpool.client.async_store",
    "Key": "moonpool.core.keys",
    "Lease": "moonpool.client.store",
    "ObjectInfo": "moonpool.core.messages",
    "Pieces": "moonpool.transport.base",
    "Status": "moonpool.core.messages",
    "Store": "moonpool.client.store",
    "fingerprint": "moonpool.core.keys",
    "key_of": "moonpool.core.keys",
    "pack": "moonpool.core.keys",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'moonpool' has no attribute {name!r}")
    module = importlib.import_module(_ELSEWHERE.get(name, "moonpool.errors"))
    found: object = getattr(module, name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
