"""Handoffs between engines: saying how one's own go, and waiting for another's objects."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from moonpool.client.answers import expect
from moonpool.client.transfers import Transfers
from moonpool.client.watching import Answer, Watcher
from moonpool.core.messages import Done, News, Tell
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
