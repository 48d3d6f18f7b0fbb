"""Sessions: many partial transfers of the same objects, layer by layer.

Objects move as a whole between here and a segment, where they are checked; the parts are copied
from and to memory of the session.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from moonpool.client.later import Begun
from moonpool.client.wishes import Wishes
from moonpool.compat.base import Base, wishes_of
from moonpool.compat.casting import Parameter, Ragged, call, ragged
from moonpool.compat.codes import INVALID, NOT_FOUND, OK, code_of, put_code
from moonpool.compat.connected import Connected
from moonpool.compat.copying import CONFIG
from moonpool.compat.moving import usable, view_at
from moonpool.compat.replicate import ReplicateConfig, refused
from moonpool.compat.zerocopy import ALL_POINTERS, ALL_SIZES, KEYS, SIZES
from moonpool.errors import MoonpoolError
from moonpool.transport.base import U64, Pieces

Bytes = npt.NDArray[np.uint8]
EXISTS = -705


@dataclass
class Reading:
    """An object that is being read in parts."""

    key: bytes
    size: int
    bytes: Bytes | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def loaded(self, connected: Connected) -> Bytes:
        """Return all of it. Raises MoonpoolError."""
        with self.lock:
            if self.bytes is None:
                made = np.empty(self.size, np.uint8)
                lease = connected.leases.number()
                connected.store.get_into(self.key, made, lease=lease)
                self.bytes = made
            return self.bytes


@dataclass
class Writing:
    """An object that is being written in parts."""

    begun: Begun
    bytes: Bytes


class Sessions(Base):
    """The calls about sessions, of which there is one for each key."""

    def __init__(self) -> None:
        super().__init__()
        self._sessions = threading.Lock()
        self._reading: dict[str, Reading] = {}
        self._writing: dict[str, Writing] = {}

    # --- reading ------------------------------------------------------------------------------

    @call(KEYS)
    def batch_get_session_start(self, keys: list[str]) -> list[int]:
        """Begin to read objects in parts; return 0 or a code for each. Leases them."""
        connected = self._connected
        if connected is None:
            return []
        return [self._start_reading(connected, key) if key else NOT_FOUND for key in keys]

    def _start_reading(self, connected: Connected, name: str) -> int:
        key, leases = connected.keys.key(name), connected.leases
        try:
            where = connected.store.looking.locate([key], leases.number(), leases.ttl_s)[0]
            size = connected.store.size(key) if where.retry_after_s else where.size
        except MoonpoolError as error:
            return code_of(error)
        if not where.generation and not where.retry_after_s:
            return where.code or NOT_FOUND
        with self._sessions:
            self._reading[name] = Reading(key, size)
        return OK

    @call(KEYS, ALL_POINTERS, ALL_SIZES, Parameter("all_src_offsets", ragged))
    def batch_get_into_multi_buffer_ranges(
        self, keys: list[str], pointers: Ragged, sizes: Ragged, offsets: Ragged
    ) -> list[int]:
        """Copy parts of objects to registered memory; return the bytes or a code for each."""
        connected = self._connected
        if connected is None:
            return []
        return [
            self._read(connected, key, parts)
            for key, parts in _parts(keys, pointers, sizes, offsets)
        ]

    def _read(self, connected: Connected, name: str, parts: Parts | None) -> int:
        with self._sessions:
            reading = self._reading.get(name)
        if reading is None or parts is None or not parts.fit(connected, reading.size):
            return INVALID
        try:
            content = reading.loaded(connected)
        except MoonpoolError as error:
            return code_of(error)
        for pointer, size, offset in parts.each():
            view_at(pointer, size)[:] = content[offset : offset + size].data
        return parts.total

    @call(KEYS)
    def batch_get_session_end(self, keys: list[str]) -> int:
        """End reading; return 0 also for what was not begun."""
        if self._connected is None:
            return -1
        with self._sessions:
            for key in keys:
                self._reading.pop(key, None)
        return OK

    # --- writing ------------------------------------------------------------------------------

    @call(KEYS, SIZES, CONFIG)
    def batch_put_session_start(
        self, keys: list[str], sizes: U64, config: ReplicateConfig
    ) -> list[int]:
        """Take keys and space for objects of these sizes; return 0 or a code for each. Nobody can
        read them before they end."""
        connected = self._connected
        if connected is None:
            return []
        code = INVALID if len(keys) != len(sizes) else refused(config, len(keys), same_node=True)
        if code:
            return [code] * len(keys)
        wishes, mine = wishes_of(connected, config, keys) or Wishes(), frozenset(self._writing)
        return [
            self._start_writing(connected, key, size, wishes, mine)
            for key, size in zip(keys, sizes.tolist(), strict=True)
        ]

    def _start_writing(
        self,
        connected: Connected,
        name: str,
        size: int,
        wishes: Wishes,
        mine: frozenset[str],
    ) -> int:
        if not name or not size or size > _SIZE_MAX:
            return INVALID
        try:
            begun = connected.store.later.begin([connected.keys.key(name)], [size], wishes)[0]
        except MoonpoolError as error:
            return code_of(error)
        if not isinstance(begun, Begun):
            return INVALID if begun == EXISTS and name in mine else _begin_code(begun)
        with self._sessions:
            self._writing[name] = Writing(begun, np.zeros(size, np.uint8))
        return OK

    @call(KEYS, ALL_POINTERS, ALL_SIZES, Parameter("all_dst_offsets", ragged))
    def batch_put_from_multi_buffer_ranges(
        self, keys: list[str], pointers: Ragged, sizes: Ragged, offsets: Ragged
    ) -> list[int]:
        """Copy parts of objects from registered memory; return the bytes or a code for each."""
        connected = self._connected
        if connected is None:
            return []
        return [
            self._write(connected, key, parts)
            for key, parts in _parts(keys, pointers, sizes, offsets)
        ]

    def _write(self, connected: Connected, name: str, parts: Parts | None) -> int:
        with self._sessions:
            writing = self._writing.get(name)
        if writing is None or parts is None or not parts.fit(connected, writing.begun.size):
            return INVALID
        for pointer, size, offset in parts.each():
            writing.bytes[offset : offset + size] = np.frombuffer(view_at(pointer, size), np.uint8)
        return parts.total

    @call(KEYS)
    def batch_put_session_end(self, keys: list[str]) -> list[int]:
        """Make objects readable; return 0 or a code for each."""
        connected = self._connected
        if connected is None:
            return []
        return [self._end_writing(connected, key) for key in keys]

    def _end_writing(self, connected: Connected, name: str) -> int:
        with self._sessions:
            writing = self._writing.pop(name, None)
        if writing is None:
            return INVALID
        try:
            return connected.store.later.finish(writing.begun, writing.bytes.data)
        except MoonpoolError as error:
            return code_of(error)

    @call(KEYS)
    def batch_put_session_revoke(self, keys: list[str]) -> list[int]:
        """Give keys and space back; return 0 or a code for each."""
        connected = self._connected
        if connected is None:
            return []
        codes = []
        for key in keys:
            with self._sessions:
                writing = self._writing.pop(key, None)
            if writing is not None:
                connected.store.later.abandon([writing.begun])
            codes.append(INVALID if writing is None else OK)
        return codes


_SIZE_MAX = 1 << 42


def _begin_code(code: int) -> int:
    return code if code == EXISTS else put_code(code)


class Parts:
    """The parts of one object: where they are in memory, how large, and where in the object."""

    def __init__(self, pointers: U64, sizes: U64, offsets: U64) -> None:
        self._columns = pointers, sizes, offsets
        self.total: int = sum(sizes.tolist())

    def fit(self, connected: Connected, object_bytes: int) -> bool:
        """Tell whether all lie in registered memory and inside an object."""
        pointers, sizes, offsets = self._columns
        starts = np.array([0, len(sizes)], np.int64)
        inside = all(
            size + offset <= object_bytes
            for size, offset in zip(sizes.tolist(), offsets.tolist(), strict=True)
        )
        return inside and bool(usable(connected, Pieces(pointers, sizes, starts)).all())

    def each(self) -> list[tuple[int, int, int]]:
        """Return (pointer, size, offset) of each that is not empty."""
        rows = zip(*(column.tolist() for column in self._columns), strict=True)
        return [(pointer, size, offset) for pointer, size, offset in rows if size]


def _parts(
    keys: list[str], pointers: Ragged, sizes: Ragged, offsets: Ragged
) -> list[tuple[str, Parts | None]]:
    """Return each key with its parts; None where the lists do not match."""
    columns = pointers, sizes, offsets
    if any(len(column.starts) - 1 != len(keys) for column in columns):
        return [(key, None) for key in keys]
    found: list[tuple[str, Parts | None]] = []
    for i, key in enumerate(keys):
        rows: Any = [column.flat[column.starts[i] : column.starts[i + 1]] for column in columns]
        even = len(rows[0]) == len(rows[1]) == len(rows[2])
        found.append((key, Parts(*rows) if even else None))
    return found
