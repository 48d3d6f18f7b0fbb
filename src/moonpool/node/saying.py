"""How threads of a node hand what they have to tell to its event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from moonpool.core.messages import Message


def sayer(out: asyncio.Queue[Message]) -> Callable[[Message], None]:
    """Return what puts a message, in any thread, into a queue of the loop that runs now."""
    loop = asyncio.get_running_loop()

    def say(message: Message) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: the node ends
            loop.call_soon_threadsafe(out.put_nowait, message)

    return say
