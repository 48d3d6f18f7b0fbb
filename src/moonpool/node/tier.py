"""A node's disk at work: writes what it is told to, reads what is wanted, and says what came of it.

Offloads read a segment as any reader does: what is overwritten meanwhile does not count. Reads
fill slots as any writer does, and their bytes are compared with their checksum before a slot is
sealed. Work belongs to a session with the master; ``rest`` ends it, so that nothing is written
into segments that the next session has looked through.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from moonpool.core.messages import (
    DropShelved,
    Found,
    Message,
    Offload,
    Promote,
    Promotion,
    PutEnd,
    PutRevoke,
    Shelve,
    Shelved,
    TouchShelved,
    Unshelve,
)
from moonpool.errors import TransferError
from moonpool.node.crew import Crew
from moonpool.node.direct import DirectReads
from moonpool.node.writers import Writers
from moonpool.node.writing import begin
from moonpool.ssd.pace import Pace
from moonpool.ssd.reading import GONE, STORED, Wanted
from moonpool.ssd.records import Record
from moonpool.ssd.shelf import STALE, Shelf
from moonpool.ssd.spans import Item
from moonpool.transport.base import Places
from moonpool.transport.batch import chosen
from moonpool.transport.segment import Segment

WRITE_BYTES = 32 * 1024 * 1024
READ_BYTES = 16 * 1024 * 1024
"""What is written and read in one go; objects can be had from a read by so much at a time."""
WRITES = 512
READERS = 3
REST_S = 10.0

Say = Callable[[Message], None]


class Session(NamedTuple):
    """A session with a master: the disk's number in it, the node's name, the way to answer."""

    handle: int
    peer: str
    say: Say


class Write(NamedTuple):
    """A slot to write to disk."""

    session: Session
    segment: Segment
    slot: int
    generation: int


class Read(NamedTuple):
    """An object to read into a slot."""

    session: Session
    segment: Segment
    item: Promotion


class Tier:
    """Threads around a Shelf."""

    def __init__(self, shelf: Shelf, writers: Writers, pace: Pace) -> None:
        """writers: the node's; what it reads from disk are puts of its own."""
        self.shelf = shelf
        self.direct = DirectReads(shelf, pace)
        self._writers = writers
        self._pace = pace
        self._session: Session | None = None
        self._unended: set[int] = set()
        self._lock = threading.Lock()
        shelf.on_lost = self._lost
        self._writes: Crew[Write] = Crew("disk-write", self._write, batch=WRITES)
        self._drops: Crew[tuple[bytes, int]] = Crew("disk-drop", shelf.drop, batch=WRITES)
        self._reads: Crew[Read] = Crew(
            "disk-read",
            self._read,
            threads=READERS,
            batch=READ_BYTES,
            weigh=lambda read: read.item.object.size,
        )

    # --- life -----------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to work."""
        for crew in (self._writes, self._drops, self._reads):
            crew.start()
        self.direct.start()

    def close(self) -> None:
        """End the work under way and give the disk up."""
        self._pace.close()
        for crew in (self._writes, self._drops, self._reads):
            crew.close(REST_S)
        self.direct.close(REST_S)
        self.shelf.close()

    def rest(self) -> list[int]:
        """End the session's work; return the puts that it has not ended.

        Raises TransferError if the disk does not come to an end.
        """
        self._session = None
        idle = [crew.rest(REST_S) for crew in (self._reads, self._writes)]
        if not all(idle):
            raise TransferError(f"the disk has not answered for {REST_S} s")
        with self._lock:
            return sorted(self._unended)

    def begin(self, handle: int, peer: str, say: Say) -> None:
        """Work for a session from now on."""
        with self._lock:
            self._unended.clear()
        self._session = Session(handle, peer, say)

    # --- what the master says -------------------------------------------------------------------

    def offload(self, push: Offload, segment: Segment) -> None:
        """Write slots to disk."""
        session = self._session
        if session is not None:
            slots = zip(push.indexes, push.generations, strict=False)
            self._writes.add(Write(session, segment, *slot) for slot in slots)

    def promote(self, push: Promote, segments: dict[int, Segment]) -> None:
        """Read objects into slots."""
        session = self._session
        if session is None:
            return
        with self._lock:
            self._unended.update(item.generation for item in push.items)
        known = [item for item in push.items if item.segment in segments]
        self._reads.add(Read(session, segments[item.segment], item) for item in known)

    def drop(self, push: DropShelved) -> None:
        """Take objects off the disk."""
        self._drops.add(zip(push.keys, push.generations, strict=False))

    def touch(self, push: TouchShelved) -> None:
        """Take note of objects that were in use."""
        self.shelf.touch(push.keys)

    # --- writing --------------------------------------------------------------------------------

    def _write(self, batch: list[Write]) -> None:
        for session, segment, writes in _groups(batch):
            left = {each.generation for each in writes}
            try:
                self._write_slots(session, segment, writes, left)
            finally:
                # Every question is answered, whatever happened.
                _unshelve(session, [(b"", generation) for generation in sorted(left)], STALE)

    def _write_slots(
        self, session: Session, segment: Segment, writes: list[Write], left: set[int]
    ) -> None:
        """Write what slots hold; take out of ``left`` what was answered."""
        keep = segment.parts()
        found = segment.pick([each.slot for each in writes], [each.generation for each in writes])
        for some in _by_bytes([each for each in found if each is not None]):
            self._write_some(session, segment, some)
            left.difference_update(each.generation for each in some)
        del keep

    def _write_some(self, session: Session, segment: Segment, found: list[Found]) -> None:
        self._pace.before_write(sum(each.size for each in found))
        offsets = {each.generation: each.offset for each in found}

        def still(item: Item) -> bool:
            place = _place(offsets[item.generation], item.size, item.generation)
            return bool(segment.intact(place)[0])

        reasons = self.shelf.write([_item(segment, each) for each in found], still)
        stored = [e for e, reason in zip(found, reasons, strict=True) if reason == STORED]
        if stored:
            session.say(Shelve(session.handle, [_shelved(each) for each in stored]))
        for reason in set(reasons) - {STORED}:
            failed = [e for e, why in zip(found, reasons, strict=True) if why == reason]
            _unshelve(session, [(b"", each.generation) for each in failed], reason)

    def _lost(self, records: list[Record], reason: str) -> None:
        session = self._session
        if session is not None:
            _unshelve(session, [(each.key, each.generation) for each in records], reason)

    # --- reading --------------------------------------------------------------------------------

    def _read(self, batch: list[Read]) -> None:
        with self._pace.reading():
            for session, segment, reads in _groups(batch):
                ended: dict[int, int] = {}
                try:
                    ended = self._fill(session, segment, [each.item for each in reads])
                finally:
                    self._end(session, [each.item for each in reads], ended)

    def _fill(self, session: Session, segment: Segment, items: list[Promotion]) -> dict[int, int]:
        """Read objects into slots; return the checksums of those that are sealed, by
        generation."""
        keep = segment.parts()
        places = _places(items)
        keys = [item.object.key for item in items]
        parents = [item.object.parent for item in items]
        codes = begin(segment, places, keys, parents, self._writers, session.peer)
        good = np.flatnonzero(codes == 0)
        begun = [items[i] for i in good.tolist()]
        reasons = self.shelf.read([_wanted(segment, item) for item in begun])
        lost = [
            (item.object.key, item.object.generation)
            for item, reason in zip(begun, reasons, strict=True)
            if reason == GONE
        ]
        # The others were told as they were found broken.
        _unshelve(session, lost, GONE)
        whole = good[[reason == STORED for reason in reasons]]
        codes[good] = -1
        codes[whole] = segment.seal(chosen(places, whole), places.checksums[whole])
        del keep
        sealed = np.flatnonzero(codes == 0).tolist()
        return {items[i].generation: items[i].object.checksum for i in sealed}

    def _end(self, session: Session, items: list[Promotion], sealed: dict[int, int]) -> None:
        if sealed:
            session.say(PutEnd(list(sealed), list(sealed.values())))
        failed = [item.generation for item in items if item.generation not in sealed]
        if failed:
            session.say(PutRevoke(failed))
        with self._lock:
            if session is self._session:
                self._unended.difference_update(item.generation for item in items)


def _unshelve(session: Session, objects: Sequence[tuple[bytes, int]], reason: str) -> None:
    if objects:
        keys, generations = zip(*objects, strict=True)
        session.say(Unshelve(session.handle, list(keys), list(generations), reason))


def _groups(batch: list[Write] | list[Read]) -> Iterator[tuple[Session, Segment, list]]:  # type: ignore[type-arg]
    """Cut a batch into runs of one session and segment."""
    run: list[Write | Read] = []
    for each in batch:
        if run and (run[0].session is not each.session or run[0].segment is not each.segment):
            yield run[0].session, run[0].segment, run
            run = []
        run.append(each)
    if run:
        yield run[0].session, run[0].segment, run


def _by_bytes(found: list[Found]) -> Iterator[list[Found]]:
    some: list[Found] = []
    total = 0
    for each in found:
        if some and total + each.size > WRITE_BYTES:
            yield some
            some, total = [], 0
        some.append(each)
        total += each.size
    if some:
        yield some


def _item(segment: Segment, found: Found) -> Item:
    address = segment.address + found.offset
    facts = found.size, found.checksum, found.generation
    return Item(found.key, found.parent, *facts, address)


def _shelved(found: Found) -> Shelved:
    return Shelved(found.key, found.parent, found.size, found.checksum, found.generation)


def _wanted(segment: Segment, item: Promotion) -> Wanted:
    held = item.object
    address = segment.address + item.offset
    return Wanted(held.key, held.generation, held.size, held.checksum, address)


def _place(offset: int, size: int, generation: int) -> Places:
    none = np.zeros(1, np.uint64)
    return Places(
        none.view(np.int64),
        np.array([offset], np.uint64),
        np.array([size], np.uint64),
        none,
        np.array([generation], np.uint64),
        none,
    )


def _places(items: list[Promotion]) -> Places:
    return Places(
        indexes=np.array([item.index for item in items], np.int64),
        offsets=np.array([item.offset for item in items], np.uint64),
        sizes=np.array([item.object.size for item in items], np.uint64),
        capacities=np.array([item.capacity for item in items], np.uint64),
        generations=np.array([item.generation for item in items], np.uint64),
        checksums=np.array([item.object.checksum for item in items], np.uint64),
    )
