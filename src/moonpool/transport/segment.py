"""A segment: memory that holds objects and describes itself, shared between processes by mmap.

Readers and writers in several processes meet here without locks. Each page of the data area has
an owner, the generation of the object on it. A writer stores its generation on all pages of its
slot before the first byte of payload; a reader finds its object's generation on all pages before
and after its copy, or takes the object for gone.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from moonpool.core.messages import Found
from moonpool.errors import InvalidArgumentError, InvalidWriteError, TransferError
from moonpool.transport import guard, huge, layout, scan, small
from moonpool.transport.base import I64, U64, Places
from moonpool.transport.layout import ENTRY, PAGE_BYTES, Geometry, Header
from moonpool.transport.owners import Owners, pages_of

Bools = npt.NDArray[np.bool_]
Entries = np.ndarray[Any, Any]

_BAD = InvalidArgumentError.code
_STALE = InvalidWriteError.code


class _Parts(NamedTuple):
    """Views of one mapping; whoever holds them keeps it mapped. floor: see ``Segment.floor``."""

    memory: npt.NDArray[np.uint8]
    owners: Owners
    table: Entries
    floor: memoryview


class Views(NamedTuple):
    """The same memory for single objects: bytes, page owners as u64, the table as bytes, the floor
    as two u64."""

    memory: memoryview
    owners: memoryview
    table: memoryview
    floor: memoryview

    def allowed(self) -> int:
        """Return the generation above which slots may be begun."""
        return floor_in(self.floor)


def floor_in(words: memoryview) -> int:
    """Return the floor that the last entry of a table holds, 0 if it holds none."""
    return int(words[1]) if words[0] == layout.FLOOR else 0


class Segment:
    """One mapped segment. All methods may be called from several threads.

    ``address`` is where the data area starts in this process. After ``close`` every call fails
    with TransferError; the mapping goes when the last call that uses it returns.
    """

    def __init__(
        self,
        header: Header,
        mapping: mmap.mmap,
        path: str,
        fd: int | None,
        *,
        first: int = 0,
        writable: bool = True,
    ) -> None:
        """first: where in the mapping the segment begins; fd: of the file, if it is owned."""
        shape = header.geometry
        self.header = header
        self.geometry = shape
        self.path = path
        memory = np.frombuffer(mapping, np.uint8)[first : first + shape.total_bytes]
        # What the mapping's pages allow is not what its object says of itself.
        memory.flags.writeable = self.writable = writable
        owners = memory[shape.owners_offset : shape.owners_offset + 8 * shape.pages]
        table = memory[shape.table_offset : shape.table_offset + layout.ENTRY_BYTES * shape.slots]
        floor = table[-layout.ENTRY_BYTES :][:16].data.cast("Q")
        self._views: Views | None = Views(memory.data, owners.data.cast("Q"), table.data, floor)
        self._parts: _Parts | None = _Parts(
            memory, Owners(owners.view(np.uint64)), table.view(ENTRY), floor
        )
        self._fd = fd
        self.data_offset = shape.data_offset
        self.address = int(memory.ctypes.data) + shape.data_offset
        where = int(memory.ctypes.data), shape.total_bytes
        self._watch = guard.watch(mapping, *where) if path else None

    # --- making, opening, closing -------------------------------------------------------------

    @classmethod
    def create(cls, path: str | os.PathLike[str], header: Header) -> Segment:
        """Make a segment file and own it (flock) until close or the process's end.

        Raises FileExistsError; TransferError if another process owns it.
        """
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            _own(fd, path)
            os.ftruncate(fd, header.geometry.total_bytes)
            os.pwrite(fd, layout.pack_header(header), 0)
            mapping, first = huge.mapped(fd, header.geometry.total_bytes, writable=True)
            made = cls(header, mapping, os.fspath(path), fd, first=first)
            if header.geometry.slots > 1:
                made.views().floor[0] = layout.FLOOR
            return made
        except BaseException:
            os.close(fd)
            Path(path).unlink(missing_ok=True)
            raise

    @classmethod
    def open(
        cls, path: str | os.PathLike[str], *, writable: bool = True, own: bool = False
    ) -> Segment:
        """Map an existing segment file; with ``own`` take its lock as the node does.

        Raises OSError, InvalidArgumentError for a file that is no segment, and TransferError if
        another process owns it.
        """
        fd = os.open(path, (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC)
        kept = None
        try:
            if own:
                _own(fd, path)
                kept = fd
            size = os.fstat(fd).st_size
            header = layout.parse_header(os.pread(fd, layout.HEADER_BYTES, 0), size)
            mapping, first = huge.mapped(fd, header.geometry.total_bytes, writable=writable)
            return cls(header, mapping, os.fspath(path), kept, first=first, writable=writable)
        except BaseException:
            kept = None
            raise
        finally:
            if kept is None:
                os.close(fd)

    @classmethod
    def anonymous(
        cls, data_bytes: int, slots: int | None = None, *, name: str = "local"
    ) -> Segment:
        """Make a segment in this process's private memory, by default with an entry for each page:
        memory is only taken for those that are used."""
        shape = Geometry.holding(data_bytes, slots, per_slot=PAGE_BYTES)
        header = layout.new_header("", name, shape)
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        return cls(header, mmap.mmap(-1, header.geometry.total_bytes, flags=flags), "", None)

    def close(self) -> None:
        """Unmap as soon as no call uses the mapping, and give up the lock."""
        self._parts = self._views = None
        fd, self._fd = self._fd, None
        if fd is not None:
            with contextlib.suppress(OSError):
                fcntl.flock(fd, fcntl.LOCK_UN)
            os.close(fd)

    def unlink(self) -> None:
        """Delete the file; mappings live on."""
        if self.path:
            Path(self.path).unlink(missing_ok=True)

    def parts(self) -> _Parts:
        """Return the views; holding them keeps the memory mapped. TransferError when closed or
        lost: to be called after a copy as well as before."""
        parts = self._parts
        if parts is None or self.lost:
            raise self._unusable()
        return parts

    def views(self) -> Views:
        """Return the views for single objects, as ``parts`` does."""
        views = self._views
        if views is None or self.lost:
            raise self._unusable()
        return views

    @property
    def lost(self) -> bool:
        """Whether memory of the file was found to be gone: it was cut short, or there was none
        left. What is copied from or to the segment after that is of no worth."""
        return self._watch is not None and self._watch.lost

    def _unusable(self) -> TransferError:
        why = "has lost memory: its file was cut short, or shared memory is full"
        return TransferError(f"segment {self.header.name} {why if self.lost else 'is closed'}")

    def data(self) -> npt.NDArray[np.uint8]:
        """Return the data area, shape (data_bytes,)."""
        return self.parts().memory[self.geometry.data_offset :]

    @property
    def slots(self) -> int:
        """How many entries there are for objects. The last one of the table is for the floor, save
        in files of earlier versions."""
        return self.geometry.slots - (self.views().floor[0] == layout.FLOOR)

    def raise_floor(self, generation: int) -> None:
        """Let no slot be begun that was granted up to this generation: by the node, before it looks
        what the segment holds, for a master that does not know of earlier masters' grants.

        A writer says in the table that it writes before it looks at the floor, so that one of the
        two sees the other.
        """
        words = self.views().floor
        if words[0] == layout.FLOOR:
            words[1] = generation

    # --- objects ------------------------------------------------------------------------------

    def inside(self, places: Places) -> Bools:
        """Tell which places a reader may touch, whatever the numbers are, shape (n,)."""
        end = np.uint64(self.geometry.data_bytes)
        offsets, sizes = places.offsets, places.sizes
        aligned = offsets % np.uint64(PAGE_BYTES) == 0
        fits = (offsets < end) & (sizes <= end - np.minimum(offsets, end))
        return np.asarray(aligned & fits & (places.generations != 0))

    def intact(self, places: Places) -> Bools:
        """Tell whose pages all carry the object's generation, shape (n,)."""
        if small.is_small(places):
            return np.array(small.intact(self, places), bool)
        result = self.inside(places)
        owners = self.parts().owners
        if result.all():
            return owners.equal(*pages_of(places.offsets, places.sizes), places.generations)
        first, count = pages_of(places.offsets[result], places.sizes[result])
        result[result] = owners.equal(first, count, places.generations[result])
        return result

    def begin(self, places: Places, keys: list[bytes], parents: list[bytes]) -> I64:
        """Take the slots for writing; return a code for each, shape (n,).

        -600: a place outside the segment or too small; -700: this or a later writer has been
        there (a slot is begun once), or its grant is of a master that is no more.
        """
        if small.is_small_write(places):
            return np.array(small.begin(self, places, keys, parents), np.int64)
        parts = self.parts()
        key_bytes = np.fromiter(map(len, keys), np.int64, len(keys))
        codes = self._refusals(places, key_bytes)
        good = codes == 0
        first, count = pages_of(places.offsets[good], places.capacities[good])
        newest = parts.owners.newest(first, count)
        codes[np.flatnonzero(good)[newest >= places.generations[good]]] = _STALE
        codes[(codes == 0) & (places.generations <= np.uint64(floor_in(parts.floor)))] = _STALE
        good = codes == 0
        if not good.any():
            return codes
        entries = _entries(places, keys, key_bytes, parents)[good]
        entries["check"] = layout.entry_checks(entries)
        parts.table[places.indexes[good]] = entries
        codes[good & (places.generations <= np.uint64(floor_in(parts.floor)))] = _STALE
        good = codes == 0
        first, count = pages_of(places.offsets[good], places.capacities[good])
        parts.owners.fill(first, count, places.generations[good])
        for i in np.flatnonzero(good & (key_bytes > layout.KEY_INLINE_BYTES)).tolist():
            at = self.geometry.data_offset + int(places.offsets[i]) + int(places.sizes[i])
            parts.memory[at : at + len(keys[i])] = np.frombuffer(keys[i], np.uint8)
        return codes

    def seal(self, places: Places, checksums: U64) -> I64:
        """Mark written slots as committed; return a code for each, shape (n,).

        -700: the slot was not begun with this generation, or has been taken over.
        """
        if small.is_small(places):
            return np.array(small.seal(self, places, checksums), np.int64)
        parts = self.parts()
        codes = np.full(len(places), _STALE, np.int64)
        slots = np.uint64(self.geometry.slots)
        good = self.intact(places) & (places.indexes.astype(np.uint64) < slots)
        where = places.indexes[good]
        entries = parts.table[where]
        begun = (entries["state"] != layout.FREE) & (
            entries["generation"] == places.generations[good]
        )
        good[good] = begun
        where, entries = where[begun], entries[begun]
        entries["state"] = layout.COMMITTED
        entries["checksum"] = checksums[good]
        # The old check is wrong for any mix of old and new fields, so a torn store is no commit.
        parts.table["checksum"][where] = entries["checksum"]
        parts.table["state"][where] = layout.COMMITTED
        parts.table["check"][where] = layout.entry_checks(entries)
        codes[good] = 0
        return codes

    def drop(self, indexes: list[int], generations: list[int]) -> int:
        """Free the entries that still hold these generations; return how many did."""
        table = self.parts().table
        where = np.array([i if 0 <= i < len(table) else 0 for i in indexes], np.int64)
        valid = np.array([0 <= i < len(table) for i in indexes], bool)
        wanted = np.array([g & 0xFFFFFFFFFFFFFFFF for g in generations], np.uint64)
        valid &= table["generation"][where] == wanted
        table["state"][where[valid]] = layout.FREE
        self.parts()
        return int(valid.sum())

    def disown(self, offsets: list[int], generations: list[int]) -> None:
        """Let no reader take what lies at these offsets for objects of these generations."""
        pages = self.parts().owners.pages
        first = np.array(offsets, np.int64) // PAGE_BYTES
        still = pages[first] == np.array(generations, np.uint64)
        pages[first[still]] = 0
        self.parts()

    def scan(self, *, verify: bool = False, reset: bool = False, pack: bool = False) -> scan.Scan:
        """Read the table; see scan.read."""
        parts = self.parts()
        found = scan.read(self, parts.table, parts.owners, verify=verify, reset=reset, pack=pack)
        self.parts()
        return found

    def pick(self, indexes: list[int], generations: list[int]) -> list[Found | None]:
        """Return what these table entries hold, None for what is not a whole object of its
        generation (any more)."""
        parts = self.parts()
        found = scan.pick(self, parts.table, indexes, generations)
        self.parts()
        return found

    def checksum_at(self, index: int, generation: int) -> int | None:
        """Return the checksum in a table entry, None if it is of another generation."""
        entry = self.parts().table[index]
        return int(entry["checksum"]) if int(entry["generation"]) == generation else None

    def damaged(self) -> Iterator[tuple[list[int], list[int], list[int]]]:
        """Compare payloads with their checksums; see scan.damaged."""
        parts = self.parts()
        yield from scan.damaged(self, parts.table)

    def ranges(self, first: int, last: int) -> list[tuple[int, int]]:
        """Return the parts of a byte range of the file that are not holes."""
        if self._fd is None:
            return [(first, last)]
        return scan.filled(self._fd, first, last)

    def _refusals(self, places: Places, key_bytes: npt.NDArray[np.int64]) -> I64:
        """Return -600 for each place that a writer may not touch, else 0, shape (n,)."""
        end = np.uint64(self.geometry.data_bytes)
        room, sizes = places.capacities, places.sizes
        tail = np.where(key_bytes > layout.KEY_INLINE_BYTES, key_bytes, 0).astype(np.uint64)
        fits = (sizes <= room) & (tail <= room - np.minimum(sizes, room))
        fits &= room <= end - np.minimum(places.offsets, end)
        fits &= places.indexes.astype(np.uint64) < np.uint64(self.geometry.slots)
        fits &= (key_bytes > 0) & (key_bytes < 1 << 16) & (room > 0)
        return np.where(self.inside(places) & fits, 0, _BAD).astype(np.int64)


def _entries(
    places: Places, keys: list[bytes], key_bytes: npt.NDArray[np.int64], parents: list[bytes]
) -> Entries:
    """Return table entries in state WRITING, without their checks."""
    inline = layout.KEY_INLINE_BYTES
    entries = np.zeros(len(places), ENTRY)
    entries["state"] = layout.WRITING
    entries["key_bytes"] = np.minimum(key_bytes, (1 << 16) - 1)
    entries["generation"] = places.generations
    entries["offset"] = places.offsets
    entries["size"] = places.sizes
    entries["capacity"] = places.capacities
    entries["key"] = [key if len(key) <= inline else b"" for key in keys]
    entries["key_check"] = [layout.key_check(key) for key in keys]
    if parents:
        kept = [parent if len(parent) <= layout.PARENT_BYTES_MAX else b"" for parent in parents]
        entries["parent"] = kept
        entries["parent_bytes"] = np.fromiter(map(len, kept), np.int64, len(kept))
    return entries


def _own(fd: int, path: str | os.PathLike[str]) -> None:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise TransferError(f"{os.fspath(path)} belongs to a process that lives") from None
