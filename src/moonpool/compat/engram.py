"""Embedding tables as objects, one for each head of a layer."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from moonpool.compat.base import Base
from moonpool.compat.casting import Caster, Parameter, boolean, call, i32, list_of, plain_list
from moonpool.compat.codes import INVALID, NOT_FOUND, OK
from moonpool.compat.records import Record
from moonpool.compat.tensors import put_bytes

Table = npt.NDArray[np.float32]


class EngramStoreConfig(Record):
    """How many rows each head's table has, and how wide they are."""

    __slots__ = ()
    CASTS: ClassVar[dict[str, Caster]] = {"table_vocab_sizes": list_of(i32), "embedding_dim": i32}

    @classmethod
    def defaults(cls) -> dict[str, Any]:
        """Return the fields of a new object."""
        return {"table_vocab_sizes": [1024], "embedding_dim": 64}


class EngramStore:
    """The tables of one layer."""

    def __init__(self, layer_id: int, config: EngramStoreConfig, store: Any = None) -> None:
        """Raises ValueError for a config that describes no tables, RuntimeError for no store."""
        if not isinstance(config, EngramStoreConfig):
            raise TypeError("__init__(): incompatible constructor arguments")
        if store is not None and not isinstance(store, Base):
            raise RuntimeError("EngramStore store parameter must be a MooncakeDistributedStore")
        self._layer = i32(layer_id)
        self._rows: list[int] = config.table_vocab_sizes
        self._width: int = config.embedding_dim
        self._store: Any = store
        if not self._rows:
            raise ValueError("EngramStoreConfig.table_vocab_sizes must not be empty")
        if min(self._rows) <= 0:
            raise ValueError(
                "EngramStoreConfig.table_vocab_sizes must contain only positive values"
            )
        if self._width <= 0:
            raise ValueError("EngramStoreConfig.embedding_dim must be positive")

    @call()
    def get_embedding_dim(self) -> int:
        """Return how wide a row is."""
        return self._width

    @call()
    def get_num_heads(self) -> int:
        """Return how many tables there are."""
        return len(self._rows)

    @call()
    def get_table_vocab_sizes(self) -> list[int]:
        """Return how many rows each table has."""
        return list(self._rows)

    @call()
    def get_store_keys(self) -> list[str]:
        """Return the keys of the tables."""
        return [f"engram:l{self._layer}:h{head}" for head in range(len(self._rows))]

    @call(Parameter("embedding_buffers", plain_list))
    def populate(self, buffers: list[Any]) -> None:
        """Put the tables, which must not be there yet. Raises RuntimeError."""
        if len(buffers) != len(self._rows):
            raise RuntimeError("embedding_buffers size must match num_heads")
        tables = [np.ascontiguousarray(each, np.float32) for each in buffers]
        if [table.shape for table in tables] != [(rows, self._width) for rows in self._rows]:
            raise RuntimeError(
                "embedding buffer shape does not match get_table_vocab_sizes()/get_embedding_dim()"
            )
        keys = self.get_store_keys()
        if self._store is None or any(self._store.batch_is_exist(keys)):
            raise RuntimeError("populate failed")
        connected = self._store._connected  # noqa: SLF001
        for key, table in zip(keys, tables, strict=True):
            if put_bytes(connected, key, [table.reshape(-1).view(np.uint8)]):
                raise RuntimeError("populate failed")

    def lookup(self, row_ids: Any) -> Table:
        """Return the rows [B, L, H, D] of ids [B, L, H]. Raises RuntimeError."""
        ids = np.asarray(row_ids).astype(np.int64)
        if ids.ndim != 3:
            raise RuntimeError("row_ids array must have shape [B, L, H]")
        if ids.shape[2] != len(self._rows):
            raise RuntimeError("row_ids last dimension must match num_heads")
        limits = np.array(self._rows)
        if not ids.size or (ids < 0).any() or (ids >= limits).any() or self._store is None:
            raise RuntimeError("EngramStore lookup failed")
        found = np.empty((*ids.shape, self._width), np.float32)
        for head, key in enumerate(self.get_store_keys()):
            table = np.frombuffer(self._store.get(key), np.float32)
            if table.size != self._rows[head] * self._width:
                raise RuntimeError("EngramStore lookup failed")
            found[:, :, head] = table.reshape(-1, self._width)[ids[:, :, head]]
        return found

    @call(Parameter("force", boolean, False))
    def remove_from_store(self, force: bool) -> int:
        """Remove the tables; return how many there were. Raises RuntimeError."""
        keys = self.get_store_keys()
        codes = [INVALID] if self._store is None else self._store.batch_remove(keys, force)
        wrong = [code for code in codes if code not in (OK, NOT_FOUND)]
        if wrong:
            raise RuntimeError(f"remove_from_store failed, rc={wrong[0]}")
        return codes.count(OK)
