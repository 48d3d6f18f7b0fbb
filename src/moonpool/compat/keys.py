"""Keys of the Mooncake API as moonpool's: a name in the default tenant's or another's space."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from moonpool.core.keys import KEY_BYTES_MAX
from moonpool.core.tenants import DEFAULT_TENANT, namespace_of

_CUT = KEY_BYTES_MAX - 65
_GROUP_MAX = 512


class KeySpace:
    """The keys of one tenant; the default one's are those that ``moonpool put`` names."""

    def __init__(self, tenant: str = DEFAULT_TENANT) -> None:
        space = namespace_of(tenant)
        self.namespace = space
        self.start = bytes((len(space),)) + space

    def key(self, name: str) -> bytes:
        """Return the packed key of a name that is not empty. One that is too long is cut, and
        told from others by its digest."""
        raw = name.encode("utf-8", "surrogateescape")
        if len(raw) > KEY_BYTES_MAX:
            raw = raw[:_CUT] + b"#" + hashlib.sha256(raw).hexdigest().encode()
        return self.start + raw

    def keys(self, names: Sequence[str]) -> list[bytes]:
        """Return the packed keys of names, none of them empty."""
        start = self.start
        try:
            found = [start + name.encode() for name in names]
        except UnicodeEncodeError:  # names that were bytes, and no UTF-8
            return [self.key(name) for name in names]
        if max(map(len, found), default=0) <= KEY_BYTES_MAX + len(start):
            return found
        return [self.key(name) for name in names]

    def groups(self, names: Sequence[str], groups: Sequence[str]) -> dict[bytes, bytes]:
        """Return the groups of packed keys that have one. Those of tenants are apart."""
        packed = {self.key(n): self._group(g) for n, g in zip(names, groups, strict=True) if n}
        return {key: group for key, group in packed.items() if group}

    def group_name(self, group: bytes) -> str:
        """Return the name that stands for a group."""
        return group[len(self.start) :].decode("utf-8", "surrogateescape")

    def _group(self, name: str) -> bytes:
        raw = name.encode("utf-8", "surrogateescape")
        if len(raw) > _GROUP_MAX:
            raw = hashlib.sha256(raw).digest()
        return self.start + raw if raw else b""

    def name(self, key: bytes) -> str | None:
        """Return the name of a packed key; None for another tenant's."""
        if not key.startswith(self.start):
            return None
        return key[len(self.start) :].decode("utf-8", "surrogateescape")
