"""Which objects are there, as a table of 128-bit marks that other processes may read meanwhile.

A mark is the 16-byte digest of a block mixed with a hash of its namespace, so that thousands are
made and looked up with a few NumPy calls. Two keys with one mark would cost a miss or a load that
fails, no more; 128 bits make that a theoretical case. The table is an open-addressing one with
linear probing, at most half full. Entries are only ever moved towards their home, copied before
the old place is cleared: a reader beside the writer may miss one, but finds none that is not there.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from hashlib import blake2b
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from moonpool.core.keys import DIGEST_BYTES

U64 = npt.NDArray[np.uint64]
Flags = npt.NDArray[np.bool_]
Mark = tuple[int, int]

SLOTS_MIN = 1024
SEED_BYTES_MAX = 64
_FULL = 2
"""A table of n slots grows beyond n / _FULL marks."""
_NAMESPACES_MAX = 4096
_FIRST_CHUNK = 64
_CHUNK = 16_384
_WIDTH = 8
_WIDTH_MAX = 128
_M1: Final = 0x9E37_79B9_7F4A_7C15
_M2: Final = 0xD6E8_FEB8_6659_FD93
_MASK: Final = (1 << 64) - 1
_WORDS = struct.Struct("<QQ")


class Room(Protocol):
    """Where the table lies."""

    def make(self, slots: int) -> U64:
        """Return zeros of shape (slots, 2) for the next table."""
        ...

    def use(self) -> None:
        """Take note that the table made last is complete; the one before is not written again."""
        ...


class PlainRoom:
    """Memory of this process."""

    def make(self, slots: int) -> U64:
        """Return zeros of shape (slots, 2)."""
        return np.zeros((slots, 2), np.uint64)

    def use(self) -> None:
        """Do nothing."""


class Marker:
    """Makes marks. ``seed`` keeps outsiders from choosing keys whose marks collide."""

    def __init__(self, seed: bytes = b"") -> None:
        self._seed = seed
        self._namespaces: dict[bytes, Mark] = {}

    def space(self, namespace: bytes) -> Mark:
        """Return what is mixed into the marks of a namespace."""
        found = self._namespaces.get(namespace)
        if found is None:
            if len(self._namespaces) >= _NAMESPACES_MAX:
                self._namespaces.clear()
            found = self._namespaces[namespace] = self._hash(namespace, b"namespace")
        return found

    def mark(self, key: bytes) -> Mark:
        """Return the mark of a packed key."""
        cut = key[0] + 1
        low, high = self.space(key[1:cut])
        if len(key) - cut == DIGEST_BYTES:
            first, second = _WORDS.unpack_from(key, cut)
        else:
            first, second = self._hash(key[cut:], b"name")
        return first ^ low, second ^ high

    def marks(self, namespace: bytes, digests: U64) -> tuple[U64, U64]:
        """Return both halves of the marks of digests, words of shape (n, 2)."""
        low, high = self.space(namespace)
        return digests[:, 0] ^ np.uint64(low), digests[:, 1] ^ np.uint64(high)

    def _hash(self, text: bytes, what: bytes) -> Mark:
        raw = blake2b(text, digest_size=DIGEST_BYTES, key=self._seed, person=what).digest()
        low, high = _WORDS.unpack(raw)
        return low, high


class Marks:
    """The table and its one writer."""

    def __init__(self, seed: bytes = b"", room: Room | None = None) -> None:
        self.count = 0
        self.marker = Marker(seed)
        self._room: Room = PlainRoom() if room is None else room
        self._set(self._room.make(SLOTS_MIN))
        self._room.use()

    def add(self, key: bytes) -> None:
        """Take note of a key."""
        if (self.count + 1) * _FULL > self.slots:
            self._grow()
        self.count += self._insert(*self.marker.mark(key))

    def add_many(self, keys: list[bytes]) -> None:
        """Take note of keys, all digests in one namespace."""
        if not keys:
            return
        cut = keys[0][0] + 1
        raw = np.frombuffer(b"".join(keys), np.uint8).reshape(len(keys), cut + DIGEST_BYTES)
        self.add_digests(keys[0][1:cut], np.ascontiguousarray(raw[:, cut:]).view("<u8"))

    def add_digests(self, namespace: bytes, digests: U64) -> Flags:
        """Take note of digests, words of shape (n, 2); tell which were not there, shape (n,)."""
        low, high = self.marker.marks(namespace, digests)
        if (self.count + len(digests)) * _FULL > self.slots:
            times = 4 * (self.count + len(digests)) * _FULL // self.slots
            self._grow(1 << times.bit_length() - 1)
        return self._insert_many(low, high)

    def _insert_many(self, low: U64, high: U64) -> Flags:
        """Add marks, for which the table has room; tell which are new."""
        table, mask = self.table, self.slots - 1
        new = np.zeros(len(low), bool)
        number = np.flatnonzero(low | high)
        if len(number) < len(low):
            low, high = low[number], high[number]
        at = home_slots(low, high, self.slots)
        while at.size:
            rows = table.take(at, axis=0)
            there = (rows[:, 0] == low) & (rows[:, 1] == high)
            free = np.flatnonzero((rows[:, 0] | rows[:, 1]) == 0)
            # Of several that want one slot the first has it; the others look again.
            slots, first = np.unique(at[free], return_index=True)
            taken = free[first]
            table[slots, 1] = high[taken]
            table[slots, 0] = low[taken]
            self.count += len(slots)
            new[number[taken]] = True
            left = ~there
            left[taken] = False
            moved = left.copy()
            moved[free] = False  # the slot was free: whoever has it now may be the same mark
            at = np.where(moved, (at + 1) & mask, at)[left]
            low, high, number = low[left], high[left], number[left]
        return new

    def remove(self, key: bytes) -> None:
        """Forget a key; one that is not there is no error."""
        hole = self._find(*self.marker.mark(key))
        if hole < 0:
            return
        self.count -= 1
        words, mask = self._words, self.slots - 1
        at = hole
        for _ in range(self.slots):
            at = (at + 1) & mask
            low, high = words[2 * at], words[2 * at + 1]
            if not low and not high:
                break
            if ((at - self._home(low, high)) & mask) >= ((at - hole) & mask):
                words[2 * hole], words[2 * hole + 1] = low, high
                hole = at
        words[2 * hole] = words[2 * hole + 1] = 0

    def __contains__(self, key: bytes) -> bool:
        return self._find(*self.marker.mark(key)) >= 0

    def prefix(self, namespace: bytes, digests: bytes, stride: int = 1) -> int:
        """Return how many leading blocks are there; see ``prefix``."""
        return prefix(self.table, self.marker, namespace, digests, stride)

    def _set(self, table: U64) -> None:
        self.table = table
        self.slots = len(table)
        self._words = memoryview(table.data).cast("B").cast("Q")

    def _home(self, low: int, high: int) -> int:
        return home_slot(low, high, self.slots)

    def _find(self, low: int, high: int) -> int:
        """Return the slot of a mark, -1 if it is not there."""
        words, mask = self._words, self.slots - 1
        at = self._home(low, high)
        for _ in range(self.slots):
            here, there = words[2 * at], words[2 * at + 1]
            if here == low and there == high:
                return at
            if not here and not there:
                break
            at = (at + 1) & mask
        return -1

    def _insert(self, low: int, high: int) -> bool:
        """Add a mark; False if it is there, or is that of an empty slot."""
        words, mask = self._words, self.slots - 1
        at = self._home(low, high)
        for _ in range(self.slots):
            here, there = words[2 * at], words[2 * at + 1]
            if here == low and there == high:
                return False
            if not here and not there:
                words[2 * at + 1] = high
                words[2 * at] = low
                return True
            at = (at + 1) & mask
        return False

    def _grow(self, times: int = 2) -> None:
        """Move to a table of so many times the size, a power of two."""
        live = self.table[(self.table[:, 0] | self.table[:, 1]) != 0]
        self._set(self._room.make(times * self.slots))
        homes = home_slots(live[:, 0], live[:, 1], self.slots)
        order = np.argsort(homes, kind="stable")
        number = np.arange(len(live))
        # Linear probing in order of home: each goes to its home or right behind the one before.
        places = np.maximum.accumulate(homes[order] - number) + number
        inside = places < self.slots
        self.table[places[inside]] = live[order[inside]]
        for low, high in live[order[~inside]].tolist():
            self._insert(low, high)
        self.count = len(live)
        self._room.use()

    def validate(self, keys: Sequence[bytes]) -> None:
        """Raise AssertionError unless the table holds the marks of these keys and nothing else."""
        marks = {self.marker.mark(key) for key in keys} - {(0, 0)}
        live = self.table[(self.table[:, 0] | self.table[:, 1]) != 0]
        assert {(low, high) for low, high in live.tolist()} == marks
        assert self.count == len(live) == len(marks)
        assert all(self._find(*mark) >= 0 for mark in marks)


def home_slot(low: int, high: int, slots: int) -> int:
    """Return the slot at which a mark is looked for first."""
    mixed = ((low ^ low >> 32) * _M1 + high) & _MASK
    return ((mixed ^ mixed >> 32) * _M2 & _MASK) >> (65 - slots.bit_length())


def home_slots(low: U64, high: U64, slots: int) -> npt.NDArray[np.int64]:
    """Return the slots at which marks are looked for first."""
    mixed = low >> np.uint64(32)
    mixed ^= low
    mixed *= np.uint64(_M1)
    mixed += high
    mixed ^= mixed >> np.uint64(32)
    mixed *= np.uint64(_M2)
    mixed >>= np.uint64(65 - slots.bit_length())
    return mixed.view(np.int64)


def present(table: U64, low: U64, high: U64) -> Flags:
    """Tell which marks are in a table, shape (n,)."""
    slots = len(table)
    home = home_slots(low, high, slots)
    rows = table.take(home, axis=0)
    found: Flags = rows[:, 0] == low
    found &= rows[:, 1] == high
    if found.all():
        return found
    left = np.flatnonzero(~found & ((rows[:, 0] | rows[:, 1]) != 0))
    begin, width = 1, _WIDTH
    while left.size and begin < slots:
        span = home[left, None] + np.arange(begin, begin + width)
        span &= slots - 1
        rows = table.take(span, axis=0)
        first, second = rows[..., 0], rows[..., 1]
        hit = ((first == low[left, None]) & (second == high[left, None])).any(axis=1)
        found[left[hit]] = True
        left = left[~hit & ((first | second) != 0).all(axis=1)]
        begin += width
        width = min(2 * width, _WIDTH_MAX)
    return found


def prefix(table: U64, marker: Marker, namespace: bytes, digests: bytes, stride: int = 1) -> int:
    """Return how many leading blocks are in the table.

    digests: 16 bytes each. stride: objects end at every so many blocks; then, within the next
    stride, the longest tail object counts. See ``Match``.
    """
    words = np.frombuffer(digests, "<u8").reshape(-1, 2)
    full = stride * _leading(table, marker, namespace, words[stride - 1 :: stride])
    if stride == 1:
        return full
    tail = words[full : full + stride - 1]
    if not len(tail):
        return full
    there = np.flatnonzero(present(table, *marker.marks(namespace, tail)))
    return full + int(there[-1]) + 1 if there.size else full


def _leading(table: U64, marker: Marker, namespace: bytes, words: U64) -> int:
    """Return how many digests are there before the first that is not."""
    begin, size = 0, _FIRST_CHUNK
    while begin < len(words):
        found = present(table, *marker.marks(namespace, words[begin : begin + size]))
        gap = int(found.argmin())
        if not found[gap]:
            return begin + gap
        begin += size
        size = _CHUNK
    return len(words)
