"""Asking what there is, and removing it."""

from __future__ import annotations

import contextlib
import re

from moonpool.compat.base import Base
from moonpool.compat.casting import Parameter, boolean, call, text, texts
from moonpool.compat.codes import INVALID, NOT_FOUND, OK, code_of
from moonpool.compat.connected import Connected
from moonpool.compat.ecma import pattern_of
from moonpool.errors import InvalidArgumentError, LeasedError, MoonpoolError, NotFoundError

KEYS = Parameter("keys", texts)
FORCE = Parameter("force", boolean, False)


class Looking(Base):
    """The calls about objects that move no bytes."""

    @call(Parameter("arg0", text))
    def is_exist(self, key: str) -> int:
        """Return 1 if there is such an object, 0 if not, or a code. Leases it, as in Mooncake,
        unless MOONPOOL_COMPAT_EXIST_LEASE=0."""
        connected = self._connected
        if connected is None:
            return INVALID
        return _which_exist(connected, [key])[0] if key else 0

    @call(KEYS)
    def batch_is_exist(self, keys: list[str]) -> list[int]:
        """Return the same for each key."""
        connected = self._connected
        if connected is None:
            return [INVALID] * len(keys)
        if "" not in keys:
            return _which_exist(connected, keys)
        there = iter(_which_exist(connected, [key for key in keys if key]))
        return [next(there) if key else 0 for key in keys]

    @call(Parameter("arg0", text))
    def get_size(self, key: str) -> int:
        """Return an object's size in bytes, or a code. Leases it."""
        connected = self._connected
        if connected is None:
            return INVALID
        if not key:
            return NOT_FOUND
        try:
            name, leases = connected.keys.key(key), connected.leases
            found = connected.store.looking.locate([name], leases.number(), leases.ttl_s)[0]
            if found.retry_after_s:
                return connected.store.size(name)
        except MoonpoolError as error:
            return code_of(error)
        return found.size if found.generation else found.code or NOT_FOUND

    @call(Parameter("key", text), FORCE)
    def remove(self, key: str, force: bool) -> int:
        """Remove an object; return 0 or a code: -704 not there, -706 leased, -703 being put."""
        return _remove(self._connected, [key], force)[0]

    @call(KEYS, FORCE)
    def batch_remove(self, keys: list[str], force: bool) -> list[int]:
        """Remove objects; return the same for each."""
        return _remove(self._connected, keys, force)

    @call(Parameter("regex_pattern", text), FORCE)
    def remove_by_regex(self, regex_pattern: str, force: bool) -> int:
        """Remove the objects in whose keys the expression is found; return how many. Leased ones
        stay unless forced. Returns -600 for what is no expression."""
        connected = self._connected
        if connected is None:
            return INVALID
        try:
            pattern = pattern_of(regex_pattern)
        except re.error:
            return INVALID
        try:
            names = connected.keys
            listed = connected.store.list(namespace=names.namespace)
            keys = [each.key for each in listed if pattern.search(names.name(each.key) or "")]
            return connected.store.remove_batch(keys, force).count(OK)
        except MoonpoolError as error:
            return code_of(error)

    @call(FORCE)
    def remove_all(self, force: bool) -> int:
        """Remove all objects of the tenant, but leased ones only by force; return how many."""
        connected = self._connected
        if connected is None:
            return INVALID
        try:
            return connected.store.looking.remove_all(connected.keys.start, force=force)
        except MoonpoolError as error:
            return code_of(error)

    @call(KEYS, Parameter("segment_name", text, ""))
    def batch_replica_clear(self, keys: list[str], segment_name: str) -> list[str]:
        """Remove objects that nobody leases, with a name only those that are in this segment;
        return the keys of those that were."""
        connected = self._connected
        if connected is None:
            return []
        return [key for key in dict.fromkeys(keys) if key and _clear(connected, key, segment_name)]


def _which_exist(connected: Connected, names: list[str]) -> list[int]:
    keys, leases, looking = connected.keys.keys(names), connected.leases, connected.store.looking
    if not keys:
        return []
    try:
        if leases.lookups and leases.ttl_s:
            with contextlib.suppress(InvalidArgumentError):  # more leases than there may be
                return looking.which(keys, leases.number(), leases.ttl_s)
        return looking.present(keys)
    except MoonpoolError as error:
        return [code_of(error)] * len(names)


def _remove(connected: Connected | None, names: list[str], force: bool) -> list[int]:
    if connected is None:
        return [INVALID] * len(names)
    try:
        keys = connected.keys.keys([name for name in names if name])
        codes = iter(connected.store.remove_batch(keys, force))
    except MoonpoolError as error:
        return [code_of(error)] * len(names)
    return [next(codes) if name else NOT_FOUND for name in names]


def _clear(connected: Connected, name: str, segment: str) -> bool:
    key = connected.keys.key(name)
    try:
        if segment and segment not in connected.store.stat(key).segments:
            return False
        connected.store.remove(key)
    except (NotFoundError, LeasedError, MoonpoolError):
        return False
    return True
