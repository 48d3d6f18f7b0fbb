"""Where an object's replicas are, as the Mooncake API describes it."""

from __future__ import annotations

from dataclasses import dataclass

from moonpool.compat.enums import ReplicaStatus


@dataclass(repr=False)
class Descriptor:
    """A replica's place. The address is that in the segment, which no other process can use."""

    size: int = 0
    buffer_address: int = 0
    transport_endpoint: str = ""

    def __repr__(self) -> str:
        return (
            f"<Descriptor size={self.size} buffer_address={self.buffer_address} "
            f"transport_endpoint={self.transport_endpoint}>"
        )


@dataclass(frozen=True, slots=True)
class MemoryDescriptor:
    """A replica in memory."""

    buffer_descriptor: Descriptor


@dataclass(frozen=True, slots=True)
class DiskDescriptor:
    """A replica on a disk."""

    file_path: str
    object_size: int


class ReplicaDescriptor:
    """A replica: in a segment's memory, or on the disk of a node."""

    def __init__(self, where: Descriptor | DiskDescriptor) -> None:
        self._where = where

    @property
    def status(self) -> ReplicaStatus:
        """Whether it can be read: all that are told can."""
        return ReplicaStatus.COMPLETE

    def is_memory_replica(self) -> bool:
        """Tell whether it is in memory."""
        return isinstance(self._where, Descriptor)

    def is_disk_replica(self) -> bool:
        """Tell whether it is in a shared filesystem, where moonpool has none."""
        return False

    def is_local_disk_replica(self) -> bool:
        """Tell whether it is on a node's disk."""
        return isinstance(self._where, DiskDescriptor)

    def get_memory_descriptor(self) -> MemoryDescriptor:
        """Return where it is in memory. Raises RuntimeError if it is elsewhere."""
        if not isinstance(self._where, Descriptor):
            raise RuntimeError("Expected MemoryDescriptor")
        return MemoryDescriptor(self._where)

    def get_disk_descriptor(self) -> DiskDescriptor:
        """Return where it is on a disk. Raises RuntimeError if it is elsewhere."""
        if not isinstance(self._where, DiskDescriptor):
            raise RuntimeError("Expected DiskDescriptor")
        return self._where
