"""The client process of moonpool: ``python -m moonpool.bench.peer_moonpool``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from moonpool.bench.batch import Bytes
from moonpool.bench.worker import Answer, Client, serve
from moonpool.client.store import Store
from moonpool.core.keys import pack
from moonpool.transport import copy
from moonpool.transport.base import Pieces

PUT_TIMEOUT_S = 60.0


class MoonpoolClient(Client):
    """Packed keys (a namespace of 16 bytes, digests of 16), zero-copy calls, as engines do."""

    def __init__(self) -> None:
        super().__init__()
        self.store: Store | None = None
        self.keys: list[str | bytes] = []
        self.out = self.back = Pieces(
            np.empty(0, np.uint64), np.empty(0, np.uint64), np.zeros(1, np.int64)
        )

    @property
    def pool(self) -> Store:
        """The store; RuntimeError before ``connect``."""
        if self.store is None:
            raise RuntimeError("not connected")
        return self.store

    def connect(self, settings: dict[str, Any]) -> Answer:
        copies = copy.prepare()
        if not settings.pop("checksums", True):
            settings["copier"] = copy.HostCopier(checksums=False)
        self.store = Store.connect(**settings, put_timeout_s=PUT_TIMEOUT_S)
        return {"copies": copies}

    def use(self, memory: Bytes) -> None:
        self.pool.register_buffer(memory)

    def drop(self, memory: Bytes) -> None:
        self.pool.unregister_buffer(memory)

    def arrange(self, name: str) -> None:
        self.keys = [pack(digest(i), namespace(name)) for i in range(self.batch.objects)]
        offsets = self.batch.offsets(seed=1).ravel()
        lengths = np.full(len(offsets), self.batch.piece_bytes, np.uint64)
        starts = np.arange(self.batch.objects + 1, dtype=np.int64) * self.batch.pieces
        self.out, self.back = (
            Pieces(offsets + np.uint64(memory.ctypes.data), lengths, starts)
            for memory in (self.source, self.target)
        )

    def put_batch(self) -> Iterable[int]:
        return failures(self.pool.put_pieces(self.keys, self.out, timeout_s=PUT_TIMEOUT_S))

    def get_batch(self) -> Iterable[int]:
        return failures(self.pool.get_pieces(self.keys, self.back, timeout_s=PUT_TIMEOUT_S))

    def exists_batch(self) -> int:
        return sum(self.pool.exists_batch(self.keys))

    def remove_batch(self) -> None:
        self.pool.remove_batch(self.keys, force=True)

    def put_many(self, name: str, first: int, memory: Bytes, nbytes: int) -> Iterable[int]:
        count = len(memory) // nbytes
        keys: list[str | bytes] = [
            pack(digest(i), namespace(name)) for i in range(first, first + count)
        ]
        at = np.arange(count, dtype=np.uint64) * np.uint64(nbytes) + np.uint64(memory.ctypes.data)
        sizes = np.full(count, nbytes, np.uint64)
        pieces = Pieces(at, sizes, np.arange(count + 1, dtype=np.int64))
        return failures(self.pool.put_pieces(keys, pieces, timeout_s=PUT_TIMEOUT_S))

    def lookup(self, name: str, count: int) -> Callable[[], int]:
        digests, store, space = b"".join(map(digest, range(count))), self.pool, namespace(name)
        return lambda: store.match_digests(space, digests)

    def put_small(self, number: int, memory: Bytes) -> int:
        return 0 if self.pool.put(f"small-{number}", memory) else -705

    def get_small(self, number: int, memory: Bytes) -> int:
        return 0 if self.pool.get_into(f"small-{number}", memory) == len(memory) else -1

    def clear(self) -> None:
        self.pool.remove_all(force=True)

    def close(self) -> None:
        if self.store is not None:
            self.store.close()


def digest(number: int) -> bytes:
    """Return the name of a block: 16 bytes."""
    return number.to_bytes(16, "big")


def namespace(name: str) -> bytes:
    """Return a namespace of 16 bytes."""
    return name.encode().ljust(16, b".")[:16]


def failures(codes: Any) -> list[int]:
    """Return the codes that are none of success."""
    return [int(code) for code in codes if code]


if __name__ == "__main__":
    serve(MoonpoolClient())
