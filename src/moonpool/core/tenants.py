"""Tenants of the Mooncake API: who may put, and how many bytes of memory each may have.

Off unless asked for. A tenant's keys have a namespace made of its name; the default one's have
none. What engines store under their own namespaces belongs to no tenant.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Final

import msgspec

from moonpool.core.index import Object

DEFAULT_TENANT: Final = "default"
QUOTA_MAX: Final = (1 << 63) - 1
NAME_CHARS_MAX: Final = 256
TENANTS_MAX: Final = 65_536
_SPACE_BYTES: Final = 17


def namespace_of(tenant: str) -> bytes:
    """Return the namespace of a tenant's keys."""
    if tenant in ("", DEFAULT_TENANT):
        return b""
    return b"t" + hashlib.sha256(tenant.encode("utf-8", "surrogateescape")).digest()[:16]


def _start_of(key: bytes) -> bytes:
    return key[: key[0] + 1]


class Quota(msgspec.Struct, eq=False):
    """A tenant: the bytes it was given, those it has as long as all want more than there is, and
    those that its objects and puts take. ``refused`` counts puts without room, ``evicted_bytes``
    what made room for others."""

    name: str
    requested: int
    effective: int = 0
    charged: int = 0
    refused: int = 0
    evicted_bytes: int = 0
    objects: dict[Object, None] = {}


class Tenants:
    """The registered tenants. Bytes are those of values, once for each object."""

    def __init__(self, *, on: bool) -> None:
        self.on = on
        self.capacity = 0
        self._quotas: dict[bytes, Quota] = {}
        self._puts: dict[int, tuple[Quota, int]] = {}
        self._scaled = True

    def all(self) -> list[Quota]:
        """Return all tenants by name."""
        return sorted(self._quotas.values(), key=lambda each: each.name)

    def named(self, name: str) -> Quota | None:
        """Return a tenant by its name."""
        space = namespace_of(name)
        return self._quotas.get(bytes((len(space),)) + space)

    def of(self, key: bytes) -> Quota | None:
        """Return the tenant of a packed key."""
        return self._quotas.get(_start_of(key))

    def needs_one(self, key: bytes) -> bool:
        """Tell whether a packed key is one of the Mooncake API."""
        return not key[0] or (key[0] == _SPACE_BYTES and key[1:2] == b"t")

    def register(self, name: str, requested: int, objects: Iterable[Object]) -> Quota:
        """Give a tenant so many bytes. ``objects``: all there are, for one that is new."""
        self._scaled = False
        quota = self.named(name)
        if quota is not None:
            quota.requested = requested
            return quota
        space = namespace_of(name)
        start = bytes((len(space),)) + space
        quota = self._quotas[start] = Quota(name, requested)
        for each in objects:
            if each.key.startswith(start):
                self.add(each)
        return quota

    def drop(self, quota: Quota) -> None:
        """Forget a tenant that has nothing."""
        space = namespace_of(quota.name)
        del self._quotas[bytes((len(space),)) + space]
        self._scaled = False

    def scale(self, capacity: int) -> None:
        """Divide a pool of so many bytes; where all want more, each has its share of it."""
        if self._scaled and capacity == self.capacity:
            return
        self._scaled, self.capacity = True, capacity
        quotas = list(self._quotas.values())
        wanted = sum(each.requested for each in quotas)
        if wanted <= capacity:
            for each in quotas:
                each.effective = each.requested
            return
        for each in quotas:
            each.effective = each.requested * capacity // wanted
        rest = capacity - sum(each.effective for each in quotas)
        for each in sorted(quotas, key=lambda one: -(one.requested * capacity % wanted))[:rest]:
            each.effective += 1

    # --- what they have -------------------------------------------------------------------------

    def begin(self, generation: int, key: bytes, nbytes: int) -> None:
        """A put begins."""
        quota = self.of(key)
        if quota is not None:
            quota.charged += nbytes
            self._puts[generation] = quota, nbytes

    def resolve(self, generation: int) -> None:
        """A put is over."""
        found = self._puts.pop(generation, None)
        if found is not None:
            quota, nbytes = found
            quota.charged -= nbytes

    def add(self, added: Object) -> None:
        """Take note of an object of the index."""
        quota = self.of(added.key)
        if quota is not None and added not in quota.objects:
            quota.objects[added] = None
            quota.charged += added.size

    def forget(self, removed: Object) -> None:
        """Forget an object, which still knows its size."""
        quota = self.of(removed.key)
        if quota is not None and removed in quota.objects:
            del quota.objects[removed]
            quota.charged -= removed.size

    def validate(self, objects: Iterable[Object], puts: Iterable[int]) -> None:
        """Raise AssertionError if a tenant's bytes are not those of its objects and puts."""
        known, alive = set(objects), set(puts)
        assert all(generation in alive for generation in self._puts)
        for quota in self._quotas.values():
            assert all(each in known for each in quota.objects)
            held = sum(each.size for each in quota.objects)
            under_way = sum(n for owner, n in self._puts.values() if owner is quota)
            assert quota.charged == held + under_way
        for each in known if self.on else ():
            owner = self.of(each.key)
            assert owner is None or each in owner.objects
