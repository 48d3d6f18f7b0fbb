"""A node that a client's carrier reaches."""

from __future__ import annotations

import contextlib
import threading

from moonpool.protocol import data
from moonpool.transport.onesided_carrier import Carrier
from moonpool.transport.pool import ConnectionPool
from moonpool.transport.wire import Wire


class Link:
    """A node and the carrier that reads from it. ``lost`` is set when either has gone."""

    def __init__(
        self,
        carrier: Carrier,
        peer: str,
        ready: data.OneSidedReady,
        wire: Wire,
        pool: ConnectionPool,
    ) -> None:
        self.carrier, self.peer, self.pool = carrier, peer, pool
        self.segments = {segment.name: segment for segment in ready.segments}
        self.lost = False
        self._wire = wire
        threading.Thread(target=self._watch, name="moonpool-onesided", daemon=True).start()

    def close(self) -> None:
        """Give the way up."""
        self.lost = True
        self._wire.interrupt()
        self.pool.close()
        self.carrier.disconnect(self.peer)

    def _watch(self) -> None:
        with contextlib.suppress(OSError):
            self._wire.wait_for_end()
        self.lost = True
        self._wire.close()
