"""How a put's objects are to be kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from moonpool.core.messages import PutItem, PutStart


@dataclass(frozen=True, slots=True)
class Wishes:
    """What a put may ask for beside its replicas. ``soft_pin_s`` and ``pinned`` are PutStart's;
    ``preferred`` names a segment's node or host that is to be used while it has room."""

    replicas: int = 1
    pinned: bool = False
    soft_pin_s: float = 0.0
    preferred: str = ""

    def start(self, items: Sequence[PutItem], near: str) -> PutStart:
        """Return the request; ``near`` is preferred where nothing is wished."""
        preferred = self.preferred or near
        return PutStart([*items], self.replicas, preferred, self.pinned, self.soft_pin_s)
