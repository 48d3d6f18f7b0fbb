"""The node's life with its master: mount, announce, obey pushes, come back for ever."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import secrets
from collections.abc import Callable, Iterator

import numpy as np

from moonpool.core.messages import (
    PACKED_COLUMNS,
    Announce,
    Announced,
    AnnouncePacked,
    Copy,
    Damaged,
    Done,
    DropSlots,
    FenceWriter,
    GetSegments,
    Mount,
    Mounted,
    Push,
    SegmentInfo,
    Segments,
    SetDraining,
    Unmount,
    Welcome,
    WriterGone,
)
from moonpool.core.state import EPOCH_SHIFT
from moonpool.errors import MasterUnreachableError, MoonpoolError, NotLeaderError
from moonpool.ha.seeker import HOPS_MAX, Seeker
from moonpool.node.copying import NodeCopies
from moonpool.node.disk import NodeDisk
from moonpool.node.handler import NODE_PREFIX
from moonpool.node.link import CONNECT_S, REQUEST_S, Link, hello
from moonpool.node.storage import Storage
from moonpool.node.writers import Writers
from moonpool.protocol.versions import PACKED_SINCE
from moonpool.transport.scan import Scan
from moonpool.transport.segment import Segment

_log = logging.getLogger(__name__)

ANNOUNCE_OBJECTS = 2000
PACKED_OBJECTS = 16_384
BACK_OFF_FIRST_S = 0.1
BACK_OFF_MAX_S = 0.25
PING_S = 5.0
FOLLOW_PING_S = 0.5
"""The same where another master may lead any moment; and:"""
FOLLOW_SILENCE_S = 1.5
FOLLOW_BACK_OFF_MAX_S = 0.3
OLD_WRITERS_POLL_S = 0.5
UNMOUNT_S = 2.0


class MasterSession:
    """Keeps the node's segments mounted at the master. ``on_ready`` is called after each mount.

    ``address`` is where others reach the node's data port.
    """

    def __init__(
        self,
        master: str,
        storage: Storage,
        writers: Writers,
        address: str,
        *,
        token: str = "",
        on_ready: Callable[[], None] = lambda: None,
        disk: NodeDisk | None = None,
        copies: NodeCopies | None = None,
    ) -> None:
        self._copies = copies
        self._seeker = Seeker(master)
        self._storage = storage
        self._writers = writers
        self._address = address
        self._hello = hello(f"{NODE_PREFIX}{storage.name}/{secrets.token_hex(8)}", token)
        self._on_ready = on_ready
        self._disk = disk
        self._by_handle: dict[int, Segment] = {}
        self._gone: asyncio.Queue[WriterGone] = asyncio.Queue()
        self._damaged: asyncio.Queue[tuple[str, list[int], list[int]]] = asyncio.Queue()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._failures = 0
        self._told: str = ""

    async def run(self) -> None:
        """Stay connected until cancelled; then take the segments back."""
        loop = self._loop = asyncio.get_running_loop()

        def gone(client: str, generation: int) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: the node ends
                loop.call_soon_threadsafe(self._gone.put_nowait, WriterGone(client, generation))

        self._writers.on_gone = gone
        while True:
            try:
                await self._live()
            except MoonpoolError as error:
                self._failures += 1
                self._tell(f"no session with the master at {self._seeker}: {error}")
            longest = FOLLOW_BACK_OFF_MAX_S if self._seeker.follows else BACK_OFF_MAX_S
            await asyncio.sleep(min(longest, back_off_s(self._failures)))

    def damaged(self, name: str, offsets: list[int], generations: list[int]) -> None:
        """Tell the master, in any thread, that objects of a segment are not what was put."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: the node ends
                told = name, offsets, generations
                self._loop.call_soon_threadsafe(self._damaged.put_nowait, told)

    async def _live(self) -> None:
        """Have one session, from connecting to its end."""
        if self._disk is not None:
            await self._disk.rest()
        if self._copies is not None:
            await self._copies.rest()
        link, welcome = await self._open()
        old = self._writers.snapshot()
        ping = asyncio.create_task(self._ping(link))
        try:
            if self._copies is not None:
                await self._copies.begin(link, self._hello.peer)
            await self._mount_all(link, welcome)
            if self._disk is not None:
                await self._disk.mount(link, welcome, self._hello.peer)
            self._tell(f"mounted at the master at {self._seeker}, epoch {welcome.epoch}")
            self._failures = 0
            self._on_ready()
            await self._serve(link, welcome.version, old, ping)
        except asyncio.CancelledError:
            await self._take_back(link)
            raise
        finally:
            self._seeker.lost()
            self._by_handle.clear()
            ping.cancel()
            await asyncio.gather(ping, return_exceptions=True)
            await link.close()

    async def _open(self) -> tuple[Link, Welcome]:
        """Have a session with the leader."""
        seeker, error = self._seeker, MasterUnreachableError("no master was asked")
        connect_s, greet_s = CONNECT_S, REQUEST_S
        if seeker.follows:
            connect_s = greet_s = FOLLOW_SILENCE_S
        for _ in range(HOPS_MAX):
            where = await asyncio.to_thread(seeker.next, FOLLOW_SILENCE_S)
            try:
                patience_s = seeker.patience_s(where, greet_s)
                link, welcome = await Link.open(
                    *where, self._hello, self._obey, min(connect_s, patience_s), patience_s
                )
            except NotLeaderError as elsewhere:
                error = elsewhere
                seeker.redirected(elsewhere)
                continue
            except MoonpoolError:
                seeker.failed(where)
                raise
            try:
                seeker.accepted(where, welcome.epoch)
            except MoonpoolError:
                await link.close()
                raise
            return link, welcome
        raise error

    # --- mounting -----------------------------------------------------------------------------

    async def _mount_all(self, link: Link, welcome: Welcome) -> None:
        """Announce one segment after the other; the next one is read meanwhile."""
        infos = self._storage.infos(self._address)
        floor = welcome.epoch << EPOCH_SHIFT
        reading = self._reading(infos, 0, floor)
        try:
            for number, info in enumerate(infos):
                contents = await reading
                reading = self._reading(infos, number + 1, floor)
                segment = self._storage.segment(info.name)
                if segment is not None:
                    await self._mount(link, welcome.version, info, segment, contents)
        finally:
            await asyncio.gather(reading, return_exceptions=True)

    def _reading(self, infos: list[SegmentInfo], number: int, floor: int) -> asyncio.Future[Scan]:
        """Begin to read what is in a segment; nothing is in one beyond the last."""
        if number >= len(infos):
            none: asyncio.Future[Scan] = asyncio.get_running_loop().create_future()
            none.set_result(Scan([], [], 0, 0))
            return none
        name = infos[number].name
        return asyncio.ensure_future(asyncio.to_thread(self._storage.contents, name, floor))

    async def _mount(
        self, link: Link, version: int, info: SegmentInfo, segment: Segment, contents: Scan
    ) -> None:
        copies, draining = self._copies is not None, self._storage.draining
        mounted = await link.request(
            Mount(info, contents.generation_max, copies, draining), Mounted
        )
        self._by_handle[mounted.handle] = segment
        rejected: dict[int, int] = {}
        for piece in pieces(contents, mounted.handle, version):
            answer = await link.request(piece, Announced)
            if answer.rejected:
                generations = generations_of(piece)
                rejected |= {i: generations[i] for i in answer.rejected if i in generations}
        if rejected:
            segment.drop(list(rejected), list(rejected.values()))
            _log.info("segment %s: %d objects not adopted", info.name, len(rejected))

    async def _take_back(self, link: Link) -> None:
        """Say goodbye, if the master listens."""
        with contextlib.suppress(MoonpoolError):
            for handle in list(self._by_handle):
                await link.request(Unmount(handle), Done, UNMOUNT_S)

    # --- afterwards ---------------------------------------------------------------------------

    async def _serve(
        self, link: Link, version: int, old: frozenset[object], ping: asyncio.Task[None]
    ) -> None:
        """Send what there is to say until the session ends; raise MoonpoolError if it breaks."""
        helpers = [
            ping,
            asyncio.create_task(self._report_gone(link)),
            asyncio.create_task(self._report_damaged(link, version)),
            asyncio.create_task(self._report_old_writers(link, old)),
        ]
        if self._disk is not None:
            helpers.append(asyncio.create_task(self._disk.report(link)))
        if self._copies is not None:
            helpers.append(asyncio.create_task(self._copies.report(link)))
        try:
            waiting: set[asyncio.Task[object]] = {link.ended, *helpers}
            while not link.ended.done():
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for task in done - {link.ended}:
                    task.result()
            self._tell(
                f"the session with the master at {self._seeker} ended: {link.ended.result()}"
            )
        finally:
            for task in helpers:
                task.cancel()
            await asyncio.gather(*helpers, return_exceptions=True)

    async def _ping(self, link: Link) -> None:
        """Ask for signs of life. A master that gives none ends the session, whatever waits."""
        pause_s, silence_s = PING_S, 2 * PING_S
        if self._seeker.follows:
            pause_s, silence_s = FOLLOW_PING_S, FOLLOW_SILENCE_S
        try:
            while True:
                await asyncio.sleep(pause_s)
                await link.request(GetSegments(), Segments, silence_s)
        except MoonpoolError:
            link.abort()
            raise

    async def _report_gone(self, link: Link) -> None:
        while True:
            gone = await self._gone.get()
            # Whoever maps a segment since before this life of the node is not known by name: it may
            # be the one that is asked about, still at its copy.
            while self._storage.has_old_users():  # noqa: ASYNC110
                await asyncio.sleep(OLD_WRITERS_POLL_S)
            await link.request(gone, Done)

    async def _report_damaged(self, link: Link, version: int) -> None:
        while True:
            name, offsets, generations = await self._damaged.get()
            for handle, segment in list(self._by_handle.items()):
                if segment.header.name == name and version >= PACKED_SINCE:
                    await link.request(Damaged(handle, offsets, generations), Done)

    async def _report_old_writers(self, link: Link, old: frozenset[object]) -> None:
        """Say so when nobody is left who was here before this session."""
        # Locks of files and ends of connections in other threads: there is no event to wait for.
        while self._writers.any_left(old) or self._storage.has_old_users():  # noqa: ASYNC110
            await asyncio.sleep(OLD_WRITERS_POLL_S)
        await link.request(WriterGone(""), Done)

    def _obey(self, push: Push) -> None:
        if isinstance(push, DropSlots):
            segment = self._by_handle.get(push.handle)
            if segment is not None and len(push.indexes) == len(push.generations):
                segment.drop(push.indexes, push.generations)
        elif isinstance(push, FenceWriter):
            self._writers.fence(push.client, push.generation)
        elif isinstance(push, SetDraining):
            self._storage.set_draining(on=push.on)
        elif isinstance(push, Copy):
            if self._copies is not None:
                self._copies.obey(push, self._by_handle)
        elif self._disk is not None:
            self._disk.obey(push, self._by_handle)

    def _tell(self, text: str) -> None:
        """Log a change of state once."""
        if text != self._told:
            self._told = text
            _log.info("%s", text)


def pieces(contents: Scan, handle: int, version: int) -> Iterator[Announce | AnnouncePacked]:
    """Cut what a segment holds into announcements; the last one is marked, and there is one."""
    one_by_one = contents.writing + contents.found
    for each in contents.digests:
        if version >= PACKED_SINCE:
            yield from each.pieces(handle, PACKED_OBJECTS)
        else:
            one_by_one += each.found()
    for at in range(0, max(len(one_by_one), 1), ANNOUNCE_OBJECTS):
        last = at + ANNOUNCE_OBJECTS >= len(one_by_one)
        yield Announce(handle, one_by_one[at : at + ANNOUNCE_OBJECTS], last)


def generations_of(piece: Announce | AnnouncePacked) -> dict[int, int]:
    """Return the generations of what was announced, by table entry."""
    if isinstance(piece, Announce):
        return {found.index: found.generation for found in piece.objects}
    lines = np.frombuffer(piece.numbers, "<u8").reshape(-1, len(PACKED_COLUMNS))
    index, generation = (PACKED_COLUMNS.index(name) for name in ("index", "generation"))
    return dict(zip(lines[:, index].tolist(), lines[:, generation].tolist(), strict=True))


def back_off_s(failures: int, jitter: float | None = None) -> float:
    """Return how long to wait after so many failures in a row; jitter is in [0, 1)."""
    part = random.random() if jitter is None else jitter
    longest = min(BACK_OFF_MAX_S, BACK_OFF_FIRST_S * (1 << min(failures, 16)))
    return longest * (0.5 + part / 2)
