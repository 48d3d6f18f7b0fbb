"""How a put's objects are to be kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from moonpool.core.messages import PutItem, PutStart


@dataclass(frozen=True, slots=True)
class Wishes:
    """What a put may ask for beside its replicas. ``soft_pin_s`` and ``pinned`` are PutStart's;
    ``preferred`` names a segment's node or host that is to be used while it has room; ``groups``
    names the group of packed keys that have one: what is leased and evicted together."""

    replicas: int = 1
    pinned: bool = False
    soft_pin_s: float = 0.0
    preferred: str = ""
    groups: Mapping[bytes, bytes] = field(default_factory=dict)

    def start(self, items: Sequence[PutItem], near: str) -> PutStart:
        """Return the request; ``near`` is preferred where nothing is wished."""
        preferred, of = self.preferred or near, self.groups
        groups = [of.get(item.key, b"") for item in items] if of else []
        return PutStart([*items], self.replicas, preferred, self.pinned, self.soft_pin_s, groups)
