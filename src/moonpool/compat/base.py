"""What the parts of MooncakeDistributedStore share."""

from __future__ import annotations

import threading

from moonpool.client.wishes import Wishes
from moonpool.compat.connected import Connected
from moonpool.compat.replicate import DEFAULT, ReplicateConfig, wishes


class Base:
    """A store that may or may not be set up; ``_connected`` is None while it is not."""

    def __init__(self) -> None:
        self._connected: Connected | None = None
        self._changing = threading.Lock()


def wishes_of(connected: Connected, config: ReplicateConfig) -> Wishes | None:
    """Return what a put with this config asks moonpool for."""
    return None if config is DEFAULT else wishes(config, connected.preferred(config))
