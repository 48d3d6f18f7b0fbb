"""The node's disk in its sessions with masters: mounted after the segments, told what to do."""

from __future__ import annotations

import asyncio
import logging

from moonpool.core.messages import (
    Announced,
    Codes,
    DiskInfo,
    Done,
    DropShelved,
    Message,
    MountDisk,
    Mounted,
    Offload,
    Promote,
    Push,
    PutEnd,
    PutRevoke,
    Shelve,
    Shelved,
    TouchShelved,
    Unshelve,
    Welcome,
)
from moonpool.node.link import Link
from moonpool.node.saying import sayer
from moonpool.node.tier import Tier
from moonpool.protocol.versions import DISKS_SINCE
from moonpool.transport.segment import Segment

_log = logging.getLogger(__name__)

SHELVE_OBJECTS = 2000
REVOKE_PUTS = 10_000


class NodeDisk:
    """Tells masters of the disk and the disk of masters. Lives in the node's loop."""

    def __init__(self, tier: Tier, info: DiskInfo) -> None:
        self._tier = tier
        self._info = info
        self._out: asyncio.Queue[Message] = asyncio.Queue()
        self._unended: list[int] = []

    async def rest(self) -> None:
        """End what the last session began. Raises TransferError if the disk hangs."""
        self._unended = await asyncio.to_thread(self._tier.rest)
        self._out = asyncio.Queue()

    async def mount(self, link: Link, welcome: Welcome, peer: str) -> None:
        """Offer the disk and tell what is on it; the segments are mounted. Raises MoonpoolError.

        peer: the node's name in its sessions.
        """
        if welcome.version < DISKS_SINCE:
            _log.warning("the master is too old for disks; this node's is not used")
            return
        # What the session before left unended is given up; a new master does not know it.
        for at in range(0, len(self._unended), REVOKE_PUTS):
            await link.request(PutRevoke(self._unended[at : at + REVOKE_PUTS]), Codes)
        records = self._tier.shelf.records()
        newest = max((each.generation for each in records), default=0)
        handle = (await link.request(MountDisk(self._info, newest), Mounted)).handle
        # By age: where two have one key the newer counts, and parents come before children.
        records.sort(key=lambda each: each.generation)
        held = [Shelved(e.key, e.parent, e.size, e.checksum, e.generation) for e in records]
        self._tier.begin(handle, peer, sayer(self._out))
        for at in range(0, max(len(held), 1), SHELVE_OBJECTS):
            last = at + SHELVE_OBJECTS >= len(held)
            await self._shelve(link, Shelve(handle, held[at : at + SHELVE_OBJECTS], last))
        _log.info("disk: %s, %d objects found", self._tier.shelf.volume.describe(), len(held))

    async def report(self, link: Link) -> None:
        """Send what the disk has to say, for as long as the session lasts."""
        while True:
            message = await self._out.get()
            if isinstance(message, Shelve):
                await self._shelve(link, message)
            elif isinstance(message, Unshelve):
                await link.request(message, Done)
            elif isinstance(message, PutEnd | PutRevoke):
                await link.request(message, Codes)

    async def _shelve(self, link: Link, message: Shelve) -> None:
        answer = await link.request(message, Announced)
        rejected = [message.objects[i] for i in answer.rejected if i < len(message.objects)]
        if rejected:
            keys = [each.key for each in rejected]
            self._tier.drop(DropShelved(keys, [each.generation for each in rejected]))

    def obey(self, push: Push, segments: dict[int, Segment]) -> None:
        """Do what a master says of the disk."""
        if isinstance(push, Offload):
            segment = segments.get(push.handle)
            if segment is not None:
                self._tier.offload(push, segment)
        elif isinstance(push, Promote):
            self._tier.promote(push, segments)
        elif isinstance(push, DropShelved):
            self._tier.drop(push)
        elif isinstance(push, TouchShelved):
            self._tier.touch(push)
