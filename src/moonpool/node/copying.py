"""The node's copies in its sessions with masters: told what to fetch, tells what came of it."""

from __future__ import annotations

import asyncio

from moonpool.core.messages import Codes, Copy, Message, PutEnd, PutRevoke
from moonpool.node.copier import Copier
from moonpool.node.link import Link
from moonpool.node.saying import sayer
from moonpool.transport.segment import Segment

REVOKE_PUTS = 10_000


class NodeCopies:
    """Tells masters what the copier did. Lives in the node's loop."""

    def __init__(self, copier: Copier) -> None:
        self._copier = copier
        self._out: asyncio.Queue[Message] = asyncio.Queue()
        self._unended: list[int] = []

    async def rest(self) -> None:
        """End what the last session began. Raises TransferError if a transfer hangs."""
        self._unended = await asyncio.to_thread(self._copier.rest)
        self._out = asyncio.Queue()

    async def begin(self, link: Link, peer: str) -> None:
        """Work for a session; the segments are not mounted yet. Raises MoonpoolError."""
        # What the session before left unended is given up; a new master does not know it.
        for at in range(0, len(self._unended), REVOKE_PUTS):
            await link.request(PutRevoke(self._unended[at : at + REVOKE_PUTS]), Codes)
        self._copier.begin(peer, sayer(self._out))

    async def report(self, link: Link) -> None:
        """Send what there is to say, for as long as the session lasts."""
        while True:
            message = await self._out.get()
            if isinstance(message, PutEnd | PutRevoke):
                await link.request(message, Codes)

    def obey(self, push: Copy, segments: dict[int, Segment]) -> None:
        """Fetch what a master says."""
        self._copier.copy(push, segments)
