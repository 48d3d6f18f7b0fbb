"""Protocol versions: each end names the range it speaks, the newest common one is used."""

from __future__ import annotations

from moonpool.errors import VersionMismatchError

PROTOCOL_MIN = 1
PROTOCOL_MAX = 5
PACKED_SINCE = 2
"""The version that brought AnnouncePacked."""
AWAIT_SINCE = 2
"""The version that brought Tell and Await."""
DISKS_SINCE = 2
"""The version that brought MountDisk, Shelve, Unshelve and Prefetch."""
ABANDON_SINCE = 3
"""The version that brought PutAbandon."""
PINS_SINCE = 4
"""The version that brought Pin, Unpin, UseSession and EndSession."""
GROUPS_SINCE = 5
"""The version that brought the groups of PutStart, which older masters pass over."""
REPLICATE_SINCE = 5
"""The version that brought Replicate."""


def negotiate(version_min: int, version_max: int) -> int:
    """Return the newest version in both ranges; raise VersionMismatchError if there is none."""
    version = min(version_max, PROTOCOL_MAX)
    if version < max(version_min, PROTOCOL_MIN):
        raise VersionMismatchError(
            f"the peer speaks protocol versions {version_min} to {version_max}; "
            f"{PROTOCOL_MIN} to {PROTOCOL_MAX} are spoken here"
        )
    return version
