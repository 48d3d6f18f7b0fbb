"""From a node's configuration to its second tier."""

from __future__ import annotations

import logging

from moonpool.config import NodeConfig
from moonpool.core.messages import DiskInfo
from moonpool.errors import ConfigError
from moonpool.node.tier import Tier
from moonpool.node.writers import Writers
from moonpool.ssd.local import LocalVolume
from moonpool.ssd.pace import Pace
from moonpool.ssd.remote import RemoteVolume
from moonpool.ssd.shelf import Shelf

_log = logging.getLogger(__name__)

MIB = 1 << 20
SIZE_MIN = 16 * MIB
EXTENTS = 64
"""How many a disk is cut into, where that makes them neither too small nor too large."""
EXTENT_BYTES_MIN = 256 * MIB
"""Large enough for objects of large models; a smaller disk has eight extents."""
EXTENT_BYTES_MAX = 4096 * MIB
REMOTE_EXTENT_BYTES = 128 * MIB
"""There an extent is a batch, gathered in memory first; a larger object has no place."""
PROMOTE_SHARE, OFFLOAD_SHARE = 4, 8
"""The parts of a node's memory that may be on their way from disk, and to it, at a time."""
WAY_BYTES_MIN = 16 * MIB
PROMOTE_BYTES_MAX = 4096 * MIB
OFFLOAD_BYTES_MAX = 512 * MIB


def extent_bytes_for(capacity_bytes: int) -> int:
    """Return the size of an extent of a disk."""
    wanted = max(EXTENT_BYTES_MIN, min(EXTENT_BYTES_MAX, capacity_bytes // EXTENTS))
    return min(wanted, capacity_bytes // 8) // MIB * MIB


def disk_info(config: NodeConfig, name: str, address: str) -> DiskInfo:
    """Return the disk as the master is told of it. address: the node's data port."""
    return DiskInfo(
        node=name,
        capacity_bytes=config.ssd_size,
        policy=config.ssd_policy,
        promote_bytes=min(max(config.size // PROMOTE_SHARE, WAY_BYTES_MIN), PROMOTE_BYTES_MAX),
        offload_bytes=min(max(config.size // OFFLOAD_SHARE, WAY_BYTES_MIN), OFFLOAD_BYTES_MAX),
        address=address,
    )


def open_tier(config: NodeConfig, name: str, writers: Writers) -> Tier:
    """Take the disk, with what is on it, and begin to work. Raises ConfigError."""
    if config.ssd_size < SIZE_MIN:
        raise ConfigError(f"ssd_size: {config.ssd_size} bytes; at least {SIZE_MIN} are needed")
    extent_bytes = extent_bytes_for(config.ssd_size)
    volume: LocalVolume | RemoteVolume
    if "://" in config.ssd:
        volume = RemoteVolume(config.ssd, name)
        extent_bytes = min(extent_bytes, REMOTE_EXTENT_BYTES)
    else:
        volume = LocalVolume(config.ssd, name)
    try:
        if isinstance(volume, LocalVolume):
            volume.check_space(config.ssd_size)
        shelf = Shelf(volume, name, config.ssd_size, extent_bytes)
        found = shelf.recover()
    except BaseException:
        volume.close()
        raise
    _log.info("disk: %s has %d objects", volume.describe(), len(found))
    tier = Tier(shelf, writers, Pace(config.ssd_write_rate))
    tier.start()
    return tier
