"""What the parts of MooncakeDistributedStore share."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from moonpool.client.wishes import Wishes
from moonpool.compat.connected import Connected
from moonpool.compat.replicate import DEFAULT, ReplicateConfig, wishes


class Base:
    """A store that may or may not be set up; ``_connected`` is None while it is not."""

    def __init__(self) -> None:
        self._connected: Connected | None = None
        self._changing = threading.Lock()


def wishes_of(connected: Connected, config: ReplicateConfig, keys: Sequence[str]) -> Wishes | None:
    """Return what a put of keys with this config asks moonpool for."""
    if config is DEFAULT:
        return None
    groups = connected.keys.groups(keys, config.group_ids) if config.group_ids else None
    return wishes(config, connected.preferred(config), groups)
