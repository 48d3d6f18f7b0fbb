"""Where objects are."""

from __future__ import annotations

from collections.abc import Sequence

from moonpool.compat.base import Base
from moonpool.compat.casting import call
from moonpool.compat.connected import Connected
from moonpool.compat.descriptors import Descriptor, DiskDescriptor, ReplicaDescriptor
from moonpool.compat.zerocopy import KEY, KEYS
from moonpool.core.messages import Located
from moonpool.errors import MoonpoolError


class Replicas(Base):
    """The calls that describe replicas. They lease what they describe."""

    @call(KEY)
    def get_replica_desc(self, key: str) -> list[ReplicaDescriptor]:
        """Return an object's replicas; none for what is not there."""
        return self._described([key]).get(key, [])

    @call(KEYS)
    def batch_get_replica_desc(self, keys: list[str]) -> dict[str, list[ReplicaDescriptor]]:
        """Return the replicas of those objects that are there."""
        return self._described(keys)

    def _described(self, keys: Sequence[str]) -> dict[str, list[ReplicaDescriptor]]:
        connected, names = self._connected, [key for key in dict.fromkeys(keys) if key]
        if connected is None or not names:
            return {}
        try:
            return _described(connected, names)
        except MoonpoolError:
            return {}


def _described(connected: Connected, names: list[str]) -> dict[str, list[ReplicaDescriptor]]:
    packed, leases = connected.keys.keys(names), connected.leases
    places = {each.info.handle: each.info.node for each in connected.store.status().segments}
    found = connected.store.looking.locate(packed, leases.number(), leases.ttl_s)
    described = {}
    for name, key, where in zip(names, packed, found, strict=True):
        replicas = _in_memory(where, places)
        if where.retry_after_s:
            info = connected.store.stat(key)
            replicas = [ReplicaDescriptor(DiskDescriptor(info.disk, info.size))]
        if replicas:
            described[name] = replicas
    return described


def _in_memory(where: Located, places: dict[int, str]) -> list[ReplicaDescriptor]:
    return [
        ReplicaDescriptor(Descriptor(where.size, slot.offset or 1, places[slot.segment]))
        for slot in where.slots
        if slot.segment in places
    ]
