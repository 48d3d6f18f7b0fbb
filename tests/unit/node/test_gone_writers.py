"""When a node that was started again says that a client cannot write any more."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from moonpool.core.messages import Done, WriterGone
from moonpool.node import session
from moonpool.node.session import MasterSession


class Storage:
    """Mapped by somebody since before, until a test says otherwise."""

    def __init__(self) -> None:
        self.old_users = True

    def has_old_users(self) -> bool:
        return self.old_users


class Link:
    def __init__(self) -> None:
        self.said: list[Any] = []

    async def request(self, message: Any, wanted: type) -> Any:
        self.said.append(message)
        return Done()


async def test_nobody_is_said_to_be_gone_while_somebody_from_before_may_still_copy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A client whose connection to the master breaks goes on with its copy; its node, killed and
    started again, knows no client by name yet. Its space was given to others too soon."""
    monkeypatch.setattr(session, "OLD_WRITERS_POLL_S", 0.001)
    storage, link = Storage(), Link()
    made: Any = object.__new__(MasterSession)
    made._gone, made._storage = asyncio.Queue(), storage
    reporting = asyncio.create_task(made._report_gone(link))
    made._gone.put_nowait(WriterGone("client", 7))
    await asyncio.sleep(0.05)
    assert link.said == []
    storage.old_users = False
    async with asyncio.timeout(10):
        while not link.said:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    assert link.said == [WriterGone("client", 7)]
    reporting.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await reporting
