"""A host: its network in both directions, its disks, and each engine's ways to its memory."""

from __future__ import annotations

from collections import Counter
from typing import ClassVar

from moonpool.sim.events import Clock
from moonpool.sim.fleet.engine import Crowd
from moonpool.sim.fleet.links import Backlog, FairLink


class Host:
    """Links of one host. A load that takes only a small part from a host does not follow it: those
    bytes queue behind other small ones."""

    SMALL_PARTS: ClassVar[int] = 8

    def __init__(self, clock: Clock, nic_gb_s: float, ssd_gb_s: float) -> None:
        self.nic_in, self.nic_out = FairLink(clock, nic_gb_s), FairLink(clock, nic_gb_s)
        self.nic_out_small = Backlog(nic_gb_s)
        self.disk = FairLink(clock, ssd_gb_s)
        self.crowd = Crowd()
        self.ways_in: dict[int, FairLink] = {}
        self.ways_out: dict[int, FairLink] = {}
        self._clock = clock

    def add_way(self, engine: int, gb_s: float) -> None:
        """Add an engine's own ways from and to the host's memory."""
        self.ways_in[engine] = FairLink(self._clock, gb_s)
        self.ways_out[engine] = FairLink(self._clock, gb_s)

    def total_bytes(self) -> Counter[str]:
        """Return the bytes that went through, by what they went through."""
        return Counter(
            nic_in=self.nic_in.total_bytes,
            nic_out=self.nic_out.total_bytes + self.nic_out_small.total_bytes,
            disk=self.disk.total_bytes,
            loads=sum(way.total_bytes for way in self.ways_in.values()),
            saves=sum(way.total_bytes for way in self.ways_out.values()),
        )
