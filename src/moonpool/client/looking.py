"""Lookups as clients of the Mooncake API expect them: what they find stays leased for a while."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from moonpool.client.answers import as_many, expect
from moonpool.client.channel import Channel
from moonpool.client.getting import Getter
from moonpool.client.memory import Registry
from moonpool.core.messages import (
    BATCH_ITEMS_MAX,
    Codes,
    Existing,
    Exists,
    Get,
    Got,
    Hold,
    Located,
    Matched,
    RemoveAll,
    Replicate,
)
from moonpool.errors import NotSupportedError
from moonpool.protocol.versions import REPLICATE_SINCE
from moonpool.transport.base import U64


class Looking:
    """Leases under numbers of the caller's. Every verb raises MasterUnreachableError."""

    def __init__(self, channel: Channel, getter: Getter, registry: Registry) -> None:
        self._channel = channel
        self._getter = getter
        self._registry = registry

    @property
    def kv_lease_s(self) -> float:
        """For how long the master wants such clients to lease what they look at."""
        return self._channel.kv_lease_s

    def lease_for(self, seconds: float) -> None:
        """Let the store's reads take so long, and no longer, from now on."""
        self._getter.lease_s = seconds

    def new_lease(self) -> int:
        """Return a number that the store has not used for a lease yet."""
        return self._getter.new_lease()

    def which(self, keys: Sequence[bytes], lease: int, ttl_s: float) -> list[int]:
        """Return 1 for each packed key that is there, 0 for others, and lease those that are. A
        prefix that is there costs one request, what is behind its end one or two more."""
        found: list[int] = []
        for first in range(0, len(keys), BATCH_ITEMS_MAX):
            part = [*keys[first : first + BATCH_ITEMS_MAX]]
            count = self._prefix(part, lease, ttl_s)
            rest = part[count + bool(count) :]
            found += [1] * count + [0] * (0 < count < len(part))
            if rest:
                found += self._scattered(rest, lease, ttl_s)
        return found

    def _prefix(self, keys: list[bytes], lease: int, ttl_s: float) -> int:
        board = self._channel.board()
        if board is not None and board.has(keys[0]) is False:
            return 0
        return expect(Matched, self._channel.call(Hold(keys, lease, ttl_s))).count

    def _scattered(self, keys: list[bytes], lease: int, ttl_s: float) -> list[int]:
        present = self.present(keys)
        if 1 not in present:
            return present
        self.hold([key for key, there in zip(keys, present, strict=True) if there], lease, ttl_s)
        return present

    def present(self, keys: Sequence[bytes]) -> list[int]:
        """Return 1 for each packed key that is there, 0 for others. Changes nothing."""
        found: list[int] = []
        for first in range(0, len(keys), BATCH_ITEMS_MAX):
            part = [*keys[first : first + BATCH_ITEMS_MAX]]
            reply = expect(Existing, self._channel.call(Exists(part)))
            found += as_many(reply.present, len(part))
        return found

    def hold(self, keys: Sequence[bytes], lease: int, ttl_s: float) -> None:
        """Lease packed keys that were there a moment ago; one that is gone is passed over."""
        left = [*keys]
        while left:
            part = left[:BATCH_ITEMS_MAX]
            reply = expect(Matched, self._channel.call(Hold(part, lease, ttl_s)))
            left = left[reply.count + (reply.count < len(part)) :]

    def locate(self, keys: Sequence[bytes], lease: int, ttl_s: float) -> list[Located]:
        """Return where the objects of packed keys are, and lease those that are there."""
        reply = expect(Got, self._channel.call(Get([*keys], lease, ttl_s)))
        return [*as_many(reply.objects, len(keys))]

    def remove_all(self, start: bytes, *, force: bool) -> int:
        """Remove the objects whose packed keys begin so; return how many. Leased ones stay unless
        forced."""
        return expect(Matched, self._channel.call(RemoveAll(start, force))).count

    def replicate(self, key: bytes, node: str, source: str = "") -> int:
        """Have an object copied to a node, or moved there from one. Return 0 when it is done, -703
        while it is to be asked again, or why it cannot be. Raises NotSupportedError."""
        if self._channel.version < REPLICATE_SINCE:
            raise NotSupportedError("copies: the pool's master does not know them")
        reply = expect(Codes, self._channel.call(Replicate(key, node, source)))
        return as_many(reply.codes, 1)[0]

    def is_registered(self, address: int, nbytes: int) -> bool:
        """Tell whether one range of memory lies in the store's registered memory."""
        return self._registry.covers(address, nbytes)

    def registered(self, addresses: U64, lengths: U64) -> npt.NDArray[np.bool_]:
        """Tell for each range of memory whether it lies in the store's registered memory."""
        return self._registry.inside(addresses, lengths)
