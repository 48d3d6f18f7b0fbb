"""Handoffs between engines: saying how one's own go, and waiting for another's objects."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from moonpool.client.answers import expect
from moonpool.client.transfers import Transfers
from moonpool.client.watching import Answer, Watcher
from moonpool.core.handoffs import claim_of
from moonpool.core.messages import OPEN, Await, Awaited, Done, News, Tell
from moonpool.protocol.versions import AWAIT_SINCE


class Handing(Transfers):
    """The part of Store that engines use in prefill/decode splits."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._watcher: Watcher | None = None
        self._watching = threading.Lock()

    @property
    def awaits(self) -> bool:
        """Whether the master knows of handoffs."""
        return self._channel.version >= AWAIT_SINCE

    def tell(self, news: Sequence[News]) -> None:
        """Say how handoffs go. Raises MasterUnreachableError."""
        expect(Done, self._channel.call(Tell(list(news))))

    def coming(self, keys: Sequence[bytes]) -> int:
        """Return how many leading packed keys are there or being computed by an engine that has
        said so under ``claim_of`` them. Raises MasterUnreachableError."""
        low, high = 0, len(keys)
        while low < high:
            middle = (low + high) // 2
            key = keys[middle]
            found = expect(Awaited, self._channel.call(Await([key], claim_of(key))))
            if found.count or found.state == OPEN:
                low = middle + 1
            else:
                high = middle
        return low

    def watch(self, keys: Sequence[bytes], transfer: str, wait_s: float, answer: Answer) -> None:
        """Have ``answer`` called, once, when the first of these packed keys is there, the handoff
        ``transfer`` is over, or ``wait_s`` have passed: with how many leading keys are there; with
        None if the master is away.

        It may be called before this returns, and on another thread; it must not block.
        """
        with self._watching:
            if self._watcher is None:
                self._watcher = Watcher(self._channel.dedicated)
        self._watcher.ask(keys, transfer, wait_s, answer)

    def _stop_watching(self) -> None:
        with self._watching:
            if self._watcher is None:
                self._watcher = Watcher(self._channel.dedicated)
        self._watcher.close()
