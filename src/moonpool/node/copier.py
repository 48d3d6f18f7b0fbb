"""Fetching objects from other nodes, as this node is told to: threads, and the ways to those nodes.

A source is read like by any client, and what arrives is compared with its checksum before a slot
is sealed. Work belongs to a session with the master; ``rest`` ends it, so that nothing is written
into segments that the next session has looked through.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from itertools import groupby
from typing import NamedTuple

import numpy as np

from moonpool.core.messages import Copy, CopyItem, Message, PutEnd, PutRevoke
from moonpool.errors import TransferError
from moonpool.node.crew import Crew
from moonpool.node.writers import Writers
from moonpool.node.writing import begin
from moonpool.ssd.pace import Pace
from moonpool.transport import copy
from moonpool.transport.base import I64, Places
from moonpool.transport.batch import chosen
from moonpool.transport.pool import ConnectionPool
from moonpool.transport.segment import Segment
from moonpool.transport.tcp import TcpTransport

BATCH_BYTES = 16 * 1024 * 1024
"""What is fetched in one go; the next time this node's own loads come first."""
FETCHERS = 2
TIMEOUT_S = 5.0
REST_S = 30.0
POOLS_MAX = 64

Say = Callable[[Message], None]


class Session(NamedTuple):
    """A session with a master: the node's name in it and the way to answer."""

    peer: str
    say: Say


class Fetch(NamedTuple):
    """An object to fetch into a slot."""

    session: Session
    segment: Segment
    item: CopyItem


class Copier:
    """Threads that fetch."""

    def __init__(self, writers: Writers, pace: Pace, token: str = "") -> None:
        """writers: the node's; what it fetches are puts of its own. pace: lets loads go first."""
        self._writers = writers
        self._pace = pace
        self._token = token
        self._session: Session | None = None
        self._unended: set[int] = set()
        self._lock = threading.Lock()
        self._pools: dict[str, ConnectionPool] = {}
        self._crew: Crew[Fetch] = Crew(
            "copy",
            self._fetch,
            threads=FETCHERS,
            batch=BATCH_BYTES,
            weigh=lambda fetch: fetch.item.size,
        )

    def start(self) -> None:
        """Begin to work."""
        self._crew.start()

    def close(self) -> None:
        """End the work under way."""
        self._close_pools()
        self._pace.close()
        self._crew.close(REST_S)

    def rest(self) -> list[int]:
        """End the session's work; return the puts that it has not ended.

        Raises TransferError if a transfer does not come to an end.
        """
        self._session = None
        self._close_pools()
        if not self._crew.rest(REST_S):
            raise TransferError(f"copies have not ended for {REST_S} s")
        with self._lock:
            return sorted(self._unended)

    def begin(self, peer: str, say: Say) -> None:
        """Work for a session from now on."""
        with self._lock:
            self._unended.clear()
        self._session = Session(peer, say)

    def copy(self, push: Copy, segments: dict[int, Segment]) -> None:
        """Fetch objects into slots."""
        session = self._session
        if session is None:
            return
        with self._lock:
            self._unended.update(item.generation for item in push.items)
        known = [item for item in push.items if item.segment in segments]
        self._crew.add(Fetch(session, segments[item.segment], item) for item in known)
        unknown = [item.generation for item in push.items if item.segment not in segments]
        if unknown:
            self._end(session, unknown, {})

    # --- inside ---------------------------------------------------------------------------------

    def _fetch(self, batch: list[Fetch]) -> None:
        for (session, segment, address, source), items in _groups(batch):
            self._pace.before_write(sum(item.size for item in items))
            sealed: dict[int, int] = {}
            try:
                if session is self._session:
                    sealed = self._fill(session, segment, address, source, items)
            finally:
                self._end(session, [item.generation for item in items], sealed)

    def _fill(
        self, session: Session, segment: Segment, address: str, source: str, items: list[CopyItem]
    ) -> dict[int, int]:
        """Fetch objects into slots; return the checksums of those that are sealed, by
        generation."""
        keep = segment.parts()
        places = _targets(items)
        keys, parents = [item.key for item in items], [item.parent for item in items]
        codes = begin(segment, places, keys, parents, self._writers, session.peer)
        good = np.flatnonzero(codes == 0)
        at = chosen(places, good)
        memory = copy.whole(at.offsets + np.uint64(segment.address), at.sizes)
        way = TcpTransport(self._pool(address, session.peer), source, streams=1)
        codes[good] = way.read(chosen(_sources(items), good), memory)
        whole = np.flatnonzero(codes == 0)
        codes[whole] = segment.seal(chosen(places, whole), places.checksums[whole])
        del keep
        return _sealed(items, codes)

    def _end(self, session: Session, generations: list[int], sealed: dict[int, int]) -> None:
        if sealed:
            session.say(PutEnd(list(sealed), list(sealed.values())))
        failed = [generation for generation in generations if generation not in sealed]
        if failed:
            session.say(PutRevoke(failed))
        with self._lock:
            if session is self._session:
                self._unended.difference_update(generations)

    def _pool(self, address: str, peer: str) -> ConnectionPool:
        with self._lock:
            if address not in self._pools and len(self._pools) >= POOLS_MAX:
                self._pools.pop(next(iter(self._pools))).close()
            pool = self._pools.pop(address, None)
            if pool is None:
                pool = ConnectionPool(address, peer, timeout_s=TIMEOUT_S, token=self._token)
            self._pools[address] = pool
            return pool

    def _close_pools(self) -> None:
        with self._lock:
            pools, self._pools = list(self._pools.values()), {}
        for pool in pools:
            pool.close()


_Group = tuple[Session, Segment, str, str]


def _groups(batch: list[Fetch]) -> Iterator[tuple[_Group, list[CopyItem]]]:
    """Cut a batch into runs from one segment into one."""

    def ends(fetch: Fetch) -> tuple[int, int, str, str]:
        return id(fetch.session), id(fetch.segment), fetch.item.address, fetch.item.source

    for _, run in groupby(batch, ends):
        fetches = list(run)
        first = fetches[0]
        group = first.session, first.segment, first.item.address, first.item.source
        yield group, [fetch.item for fetch in fetches]


def _sealed(items: list[CopyItem], codes: I64) -> dict[int, int]:
    good = np.flatnonzero(codes == 0).tolist()
    return {items[i].generation: items[i].checksum for i in good}


def _targets(items: list[CopyItem]) -> Places:
    return Places(
        indexes=np.array([item.index for item in items], np.int64),
        offsets=np.array([item.offset for item in items], np.uint64),
        sizes=np.array([item.size for item in items], np.uint64),
        capacities=np.array([item.capacity for item in items], np.uint64),
        generations=np.array([item.generation for item in items], np.uint64),
        checksums=np.array([item.checksum for item in items], np.uint64),
    )


def _sources(items: list[CopyItem]) -> Places:
    sizes = np.array([item.size for item in items], np.uint64)
    return Places(
        indexes=np.array([item.source_index for item in items], np.int64),
        offsets=np.array([item.source_offset for item in items], np.uint64),
        sizes=sizes,
        capacities=sizes,
        generations=np.array([item.source_generation for item in items], np.uint64),
        checksums=np.array([item.checksum for item in items], np.uint64),
    )
