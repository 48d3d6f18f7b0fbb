"""Many objects at a time: batches of buffers, and zero copy from and to registered memory."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from moonpool.client import memory
from moonpool.client.answers import expect
from moonpool.client.channel import Channel
from moonpool.client.getting import Getter
from moonpool.client.later import Later
from moonpool.client.looking import Looking
from moonpool.client.lookups import Lookups
from moonpool.client.memory import Registry, is_writable, span_of
from moonpool.client.naming import AnyKey, all_packed, packed
from moonpool.client.putting import Batch, Putter
from moonpool.client.reach import Opener, Reach
from moonpool.client.wishes import Wishes
from moonpool.core.messages import Hold, Matched, Release
from moonpool.errors import InvalidArgumentError
from moonpool.transport.base import I64, U64, Pieces

if TYPE_CHECKING:
    from moonpool.client.memory import Buffer

Codes = list[int]
Values = list[bytes | None]

LEASE_S_MAX = 600.0
GET_OBJECTS = 512


@dataclass(frozen=True, slots=True)
class Lease:
    """Objects held for a planned load: the first ``count`` of the keys asked for."""

    id: int
    count: int


class Transfers(Lookups):
    """The part of Store that moves batches."""

    def __init__(
        self,
        channel: Channel,
        opener: Opener,
        *,
        put_timeout_s: float,
        lease_s: float,
        put_near: bool = False,
    ) -> None:
        if not 0 < lease_s <= LEASE_S_MAX:
            raise InvalidArgumentError(f"lease_s={lease_s}: up to {LEASE_S_MAX} are allowed")
        super().__init__(channel)
        self._reach = Reach(channel, opener)
        self._closed = threading.Event()
        self._putter = Putter(channel, self._reach, self._closed, near=put_near)
        self._getter = Getter(channel, self._reach, lease_s)
        self._registry = Registry()
        self._put_timeout_s = put_timeout_s
        self.looking = Looking(channel, self._getter, self._registry)
        self.later = Later(self._putter)

    def move_at_once(self, nbytes: int) -> None:
        """Ask the master for, and move, so many bytes of a batch at a time. The default suits
        copies by the processor, several of which go on at once; a GPU's copy engine wants its
        work in one long queue."""
        self._getter.chunk_bytes = self._putter.chunk_bytes = nbytes

    # --- batches ------------------------------------------------------------------------------

    def put_batch(
        self,
        keys: Sequence[AnyKey],
        values: Sequence[Buffer],
        *,
        parents: Sequence[AnyKey | None] | None = None,
        replicas: int = 1,
    ) -> Codes:
        """Put objects; return a code for each: 0, -705 if the key is taken, or another error's.

        Raises InvalidKeyError and InvalidArgumentError before anything is put.
        """
        spans = [span_of(value) for value in values]
        wishes = Wishes(replicas)
        codes = self._put_pieces(keys, memory.whole(spans), parents, wishes, None)
        return [int(code) for code in codes]

    def get_batch(self, keys: Sequence[AnyKey]) -> Values:
        """Return the bytes of each object, None for one that cannot be had.

        Raises MasterUnreachableError.
        """
        values: Values = []
        for first in range(0, len(keys), GET_OBJECTS):
            values += self._get_some(all_packed(keys[first : first + GET_OBJECTS]))
        return values

    # --- zero copy ----------------------------------------------------------------------------

    def register_buffer(self, buffer: Buffer) -> None:
        """Let zero-copy calls use a buffer; it is kept alive until it is unregistered.

        Raises BufferAlreadyRegisteredError if it overlaps a registered one.
        """
        span = span_of(buffer)
        writable = is_writable(buffer)
        self._registry.add(span.address, span.nbytes, writable=writable, owner=span.owner)

    def register_memory(self, address: int, nbytes: int) -> None:
        """Let zero-copy calls use memory, which must stay there until it is unregistered.

        Raises BufferAlreadyRegisteredError if it overlaps registered memory.
        """
        self._registry.add(address, nbytes)

    def unregister_memory(self, address: int) -> None:
        """Take memory or a buffer back by its first address; calls that use it must have
        returned. Raises BufferNotRegisteredError."""
        self._registry.remove(address)

    def unregister_buffer(self, buffer: Buffer) -> None:
        """Take a buffer back; see ``unregister_memory``."""
        self._registry.remove(span_of(buffer).address)

    def put_pieces(
        self,
        keys: Sequence[AnyKey],
        pieces: Pieces,
        *,
        parents: Sequence[AnyKey | None] | None = None,
        replicas: int = 1,
        timeout_s: float | None = None,
        wishes: Wishes | None = None,
    ) -> I64:
        """Put n objects from registered memory; return a code for each, shape (n,).

        wishes: more about how they are to be kept; ``replicas`` does not count then.

        Codes: 0, -705 if the key is taken, -200 if the pool stayed full until ``timeout_s``
        (default: the store's put_timeout_s), -900 if the master was lost on the way, or another
        error's. When it returns, nothing reads the memory any more. Raises InvalidKeyError,
        InvalidArgumentError, BufferNotRegisteredError before anything is put, and
        MasterUnreachableError if the master cannot be asked at all.
        """
        pieces = memory.checked(pieces)
        hold = self._registry.hold(pieces, writable=False)
        codes = self._put_pieces(keys, pieces, parents, wishes or Wishes(replicas), timeout_s)
        del hold
        return codes

    def get_pieces(
        self,
        keys: Sequence[AnyKey],
        pieces: Pieces,
        *,
        lease: int | None = None,
        timeout_s: float | None = None,
        exact: bool = False,
        sizes: U64 | None = None,
    ) -> I64:
        """Load n objects into registered memory; return a code for each, shape (n,).

        Object i may be smaller than its pieces, then only their start is written; with ``exact``
        that is -600 too, and nothing is written. Codes: 0, -704 not there, -600 larger than its
        pieces, -707 slower than its lease, -800 its bytes could not be moved, -901 not begun
        before ``timeout_s``, or another error's; with a negative code the memory's content is not
        defined. lease: ``Lease.id`` of a hold that covers the keys; it is not ended. sizes: gets
        the sizes of the objects that are there. When it
        returns, nothing writes to the memory any more. Raises as ``put_pieces``.
        """
        pieces = memory.checked(pieces)
        hold = self._registry.hold(pieces, writable=True)
        names = all_packed(keys)
        if len(names) != len(pieces):
            raise InvalidArgumentError(f"{len(names)} keys, but pieces of {len(pieces)} objects")
        codes = self._getter.read(names, pieces, lease, timeout_s, exact=exact, sizes=sizes)
        del hold
        return codes

    def open_ways(self) -> int:
        """Open the way to every segment now and not when it is first needed, so that memory can
        be pinned meanwhile; return how many are open. Raises MasterUnreachableError."""
        return self._reach.open_all()

    def hold(self, keys: Sequence[AnyKey], ttl_s: float) -> Lease:
        """Keep a prefix from eviction for a planned load; the lease covers the leading keys that
        are there, and ends after ``ttl_s`` at the latest."""
        number = self._getter.new_lease()
        reply = expect(Matched, self._channel.call(Hold(all_packed(keys), number, ttl_s)))
        return Lease(number, reply.count)

    def release(self, lease: Lease | int) -> None:
        """End a lease; one that has ended is no error. Does not wait."""
        self._channel.send_only(Release([lease if isinstance(lease, int) else lease.id]))

    # --- inside -------------------------------------------------------------------------------

    def _put_pieces(
        self,
        keys: Sequence[AnyKey],
        pieces: Pieces,
        parents: Sequence[AnyKey | None] | None,
        wishes: Wishes,
        timeout_s: float | None,
    ) -> I64:
        names = all_packed(keys)
        above = [b"" if parent is None else packed(parent) for parent in parents or ()]
        if len(names) != len(pieces) or len(above) not in (0, len(names)):
            raise InvalidArgumentError(
                f"{len(names)} keys, pieces of {len(pieces)} objects, {len(above)} parents"
            )
        sizes = pieces.sizes().tolist()
        if 0 in sizes:
            raise InvalidArgumentError(f"object {sizes.index(0)} is empty; none may be")
        batch = Batch(names, sizes, above, pieces, wishes)
        return self._putter.put(batch, self._put_timeout_s if timeout_s is None else timeout_s)

    def _get_some(self, keys: Sequence[bytes]) -> Values:
        arrays: list[Any] = []

        def room(sizes: U64, codes: I64) -> Pieces:
            arrays.extend(memory.taken(_empty, size) for size in sizes.tolist())
            return memory.whole([span_of(array, writable=True) for array in arrays])

        codes = self._getter.read_chunk([*keys], room)
        found = zip(arrays, codes.tolist(), strict=True)
        return [array.tobytes() if code == 0 else None for array, code in found]


def _empty(nbytes: int) -> npt.NDArray[np.uint8]:
    return np.empty(nbytes, np.uint8)
