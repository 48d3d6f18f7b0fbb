"""The store's calls under asyncio, in the loop's threads."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from typing import Any, Self

from moonpool.compat.store import MooncakeDistributedStore

PREFIX = "async_"


class MooncakeDistributedStoreAsync(MooncakeDistributedStore):
    """A store of which each call has an ``async_`` twin that is awaited."""

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        plain = name.removeprefix(PREFIX)
        call = getattr(type(self), plain, None) if name.startswith(PREFIX) else None
        if call is None:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        twin = _twin(getattr(self, plain))
        setattr(self, name, twin)
        return twin

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.close)


def _twin(call: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
    @functools.wraps(call)
    async def awaited(*args: Any, **named: Any) -> Any:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(None, functools.partial(call, *args, **named))

    return awaited
