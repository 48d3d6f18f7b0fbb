"""Store: the pool as a program sees it.

Keys are text that people choose (``str``), or packed keys (``bytes``, see ``moonpool.core.keys``)
such as engines use. Objects are immutable bytes. All methods may be called from several threads.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from moonpool import config, config_values
from moonpool.client import memory
from moonpool.client.answers import as_many, expect
from moonpool.client.channel import Channel, SocketChannel
from moonpool.client.getting import Getter
from moonpool.client.local import LocalChannel
from moonpool.client.lookups import Lookups
from moonpool.client.memory import Registry, is_writable, span_of, view_of
from moonpool.client.naming import AnyKey, all_packed, new_peer, packed, shown
from moonpool.client.putting import Batch, Putter
from moonpool.client.reach import Opener, Reach
from moonpool.client.ways import Ways
from moonpool.core.messages import Hold, Matched, Release
from moonpool.errors import (
    AlreadyExistsError,
    BufferTooSmallError,
    InvalidArgumentError,
    ValueTooLargeError,
    error_for,
)
from moonpool.transport.base import I64, U64, Pieces
from moonpool.transport.segment import Segment

if TYPE_CHECKING:
    from moonpool.client.memory import Buffer

Codes = list[int]
Values = list[bytes | None]

LEASE_S_MAX = 600.0
_EXISTS = AlreadyExistsError.code


@dataclass(frozen=True, slots=True)
class Lease:
    """Objects held for a planned load: the first ``count`` of the keys asked for."""

    id: int
    count: int


class Store(Lookups):
    """A pool: ``Store.local()`` in this process, or ``Store.connect()`` to one that runs."""

    def __init__(
        self, channel: Channel, opener: Opener, *, put_timeout_s: float, lease_s: float
    ) -> None:
        """Use ``local`` or ``connect`` instead."""
        if not 0 < lease_s <= LEASE_S_MAX:
            raise InvalidArgumentError(f"lease_s={lease_s}: up to {LEASE_S_MAX} are allowed")
        super().__init__(channel)
        self._reach = Reach(channel, opener)
        self._closed = threading.Event()
        self._putter = Putter(channel, self._reach, self._closed)
        self._getter = Getter(channel, self._reach, lease_s)
        self._registry = Registry()
        self._put_timeout_s = put_timeout_s

    @classmethod
    def local(cls, capacity: int | str = "1GB") -> Self:
        """Return a pool of ``capacity`` (bytes, or text such as "4GB") in this process's memory.

        Nothing else has to run; the memory is taken as it is used. Raises InvalidArgumentError.
        """
        try:
            nbytes = config_values.parse_size(capacity)
        except ValueError:
            raise InvalidArgumentError(f"capacity={capacity!r} is no size such as '4GB'") from None
        channel = LocalChannel(Segment.anonymous(nbytes))
        return cls(channel, channel.opener, put_timeout_s=5.0, lease_s=10.0)

    @classmethod
    def connect(
        cls,
        address: str | None = None,
        *,
        name: str = "",
        transports: Sequence[str] = ("shm", "tcp"),
        timeout_s: float = 5.0,
        put_timeout_s: float = 5.0,
        lease_s: float = 10.0,
        token: str | None = None,
        connections: int = 4,
        wait: bool = True,
    ) -> Self:
        """Return the pool of the master at ``address`` (host:port).

        address: None takes MOONPOOL_MASTER, else the file that MOONCAKE_CONFIG_PATH names, else
        127.0.0.1:50051. name: shown to people. transports: ways to segments, the best first.
        timeout_s: deadline of a request to the master. put_timeout_s: how long a put waits for
        space. lease_s: how long a read may take before its bytes are void. token: the master's;
        None takes MOONPOOL_TOKEN. connections: to the master, at most. wait: with False return
        also if the master is away; calls fail fast until it is there.

        Raises MasterUnreachableError, VersionMismatchError, IllegalClientError, ConfigError.
        """
        settings = _settings(
            master=config.resolve_master(address),
            transports=transports,
            timeout_s=timeout_s,
            put_timeout_s=put_timeout_s,
            lease_s=lease_s,
            connections=connections,
        )
        peer = new_peer(name)
        channel = SocketChannel(
            config_values.parse_address(settings.master),
            peer,
            token=os.environ.get("MOONPOOL_TOKEN", "") if token is None else token,
            timeout_s=settings.timeout_s,
            connections=settings.connections,
        )
        ways = Ways(peer, settings.transports, settings.timeout_s)
        store = cls(
            channel,
            ways.open,
            put_timeout_s=settings.put_timeout_s,
            lease_s=settings.lease_s,
        )
        try:
            if wait:
                channel.connect()
            else:
                channel.connect_later()
        except BaseException:
            store.close()
            raise
        return store

    def close(self) -> None:
        """Give up connections and mappings; calls fail from now on. May be called twice."""
        self._closed.set()
        self._reach.close()
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- one object ---------------------------------------------------------------------------

    def put(
        self, key: AnyKey, value: Buffer, *, parent: AnyKey | None = None, replicas: int = 1
    ) -> bool:
        """Put an object. Return False if the key is taken; the bytes there are kept.

        parent: the key that this object continues; eviction takes it first. replicas: copies on
        as many segments, as far as there are so many. Raises InvalidKeyError,
        InvalidArgumentError (empty value), ValueTooLargeError, NoSpaceError,
        MasterUnreachableError, TransferError.
        """
        view = view_of(value)
        return self._put(key, view, view.nbytes, parent, replicas)

    def put_from(self, key: AnyKey, buffer: Buffer, size: int) -> bool:
        """Put the first ``size`` bytes of a buffer; see ``put``."""
        view = view_of(buffer)
        if not 0 <= size <= view.nbytes:
            raise InvalidArgumentError(f"size={size} of a buffer of {view.nbytes} bytes")
        return self._put(key, view[:size], size, None, 1)

    def put_from_parts(
        self, key: AnyKey, buffers: Sequence[Buffer], *, parent: AnyKey | None = None
    ) -> bool:
        """Put one object that consists of all buffers, in order; see ``put``."""
        spans = [span_of(buffer) for buffer in buffers]
        return self._put(key, memory.parts(spans), sum(s.nbytes for s in spans), parent, 1)

    def get(self, key: AnyKey) -> bytes:
        """Return an object's bytes. Raises NotFoundError, MasterUnreachableError,
        TransferError."""
        found = bytearray()

        def room(size: int) -> memoryview:
            nonlocal found
            found = bytearray(size)
            return memoryview(found)

        self._get(key, room)
        return bytes(found)

    def get_into(self, key: AnyKey, buffer: Buffer) -> int:
        """Copy an object to the start of a writable buffer; return its size in bytes.

        Raises BufferTooSmallError, and nothing is written; else as ``get``.
        """
        view = view_of(buffer, writable=True)
        taken = 0

        def room(size: int) -> memoryview:
            nonlocal taken
            _check_room(view.nbytes, size)
            taken = size
            return view[:size]

        self._get(key, room)
        return taken

    def get_into_parts(self, key: AnyKey, buffers: Sequence[Buffer]) -> int:
        """Spread an object over writable buffers, in order; return its size. See ``get_into``."""
        spans = [span_of(buffer, writable=True) for buffer in buffers]
        have = sum(span.nbytes for span in spans)
        taken = 0

        def room(size: int) -> Pieces:
            nonlocal taken
            _check_room(have, size)
            taken = size
            return memory.trimmed(memory.parts(spans), np.array([size], np.uint64))

        self._get(key, room)
        return taken

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
        codes = self._put_pieces(keys, memory.whole(spans), parents, replicas, None)
        return [int(code) for code in codes]

    def get_batch(self, keys: Sequence[AnyKey]) -> Values:
        """Return the bytes of each object, None for one that cannot be had.

        Raises MasterUnreachableError.
        """
        values: Values = []
        for first in range(0, len(keys), 512):
            values += self._get_some(all_packed(keys[first : first + 512]))
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
    ) -> I64:
        """Put n objects from registered memory; return a code for each, shape (n,).

        Codes: 0, -705 if the key is taken, -200 if the pool stayed full until ``timeout_s``
        (default: the store's put_timeout_s), -900 if the master was lost on the way, or another
        error's. When it returns, nothing reads the memory any more. Raises InvalidKeyError,
        InvalidArgumentError, BufferNotRegisteredError before anything is put, and
        MasterUnreachableError if the master cannot be asked at all.
        """
        pieces = memory.checked(pieces)
        hold = self._registry.hold(pieces, writable=False)
        codes = self._put_pieces(keys, pieces, parents, replicas, timeout_s)
        del hold
        return codes

    def get_pieces(
        self,
        keys: Sequence[AnyKey],
        pieces: Pieces,
        *,
        lease: int | None = None,
        timeout_s: float | None = None,
    ) -> I64:
        """Load n objects into registered memory; return a code for each, shape (n,).

        Object i may be smaller than its pieces, then only their start is written. Codes: 0, -704
        not there, -600 larger than its pieces, -707 slower than its lease, -800 its bytes could
        not be moved, -901 not begun before ``timeout_s``, or another error's; with a negative
        code the memory's content is not defined. lease: ``Lease.id`` of a hold that covers the
        keys; it is not ended. When it returns, nothing writes to the memory any more. Raises as
        ``put_pieces``.
        """
        pieces = memory.checked(pieces)
        hold = self._registry.hold(pieces, writable=True)
        names = all_packed(keys)
        if len(names) != len(pieces):
            raise InvalidArgumentError(f"{len(names)} keys, but pieces of {len(pieces)} objects")
        codes = self._getter.read(names, pieces, lease, timeout_s)
        del hold
        return codes

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

    def _put(
        self,
        key: AnyKey,
        value: memoryview | Pieces,
        size: int,
        parent: AnyKey | None,
        replicas: int,
    ) -> bool:
        if size == 0:
            raise InvalidArgumentError("an object must not be empty")
        above = b"" if parent is None else packed(parent)
        code = self._putter.put_one(packed(key), value, size, above, replicas, self._put_timeout_s)
        if code == InvalidArgumentError.code:
            raise ValueTooLargeError(f"{shown(key)}: no segment can hold {size} bytes")
        if code and code != _EXISTS:
            raise error_for(code, f"put of {shown(key)}, {size} bytes")
        return code == 0

    def _put_pieces(
        self,
        keys: Sequence[AnyKey],
        pieces: Pieces,
        parents: Sequence[AnyKey | None] | None,
        replicas: int,
        timeout_s: float | None,
    ) -> I64:
        names = all_packed(keys)
        above = [
            b"" if p is None else packed(p) for p in as_many(parents or (), len(parents or ()))
        ]
        if len(names) != len(pieces) or len(above) not in (0, len(names)):
            raise InvalidArgumentError(
                f"{len(names)} keys, pieces of {len(pieces)} objects, {len(above)} parents"
            )
        sizes = pieces.sizes().tolist()
        if 0 in sizes:
            raise InvalidArgumentError(f"object {sizes.index(0)} is empty; none may be")
        batch = Batch(names, sizes, above, pieces, replicas)
        return self._putter.put(batch, self._put_timeout_s if timeout_s is None else timeout_s)

    def _get(self, key: AnyKey, room: Callable[[int], memoryview | Pieces]) -> None:
        code = self._getter.read_one(packed(key), room)
        if code:
            raise error_for(code, shown(key))

    def _get_some(self, keys: Sequence[bytes]) -> Values:
        arrays: list[Any] = []

        def room(sizes: U64, codes: I64) -> Pieces:
            arrays.extend(np.empty(size, np.uint8) for size in sizes.tolist())
            return memory.whole([span_of(array, writable=True) for array in arrays])

        codes = self._getter.read_chunk([*keys], room)
        found = zip(arrays, codes.tolist(), strict=True)
        return [array.tobytes() if code == 0 else None for array, code in found]


def _settings(**options: Any) -> config.ClientConfig:
    """Check options with the rules of the configuration, but take no text for numbers."""
    for name, value in options.items():
        if isinstance(value, str) and name != "master":
            raise InvalidArgumentError(f"{name}: {value!r} is text")
    return config.load(config.ClientConfig, flags=options, env={})


def _check_room(have: int, size: int) -> None:
    if have < size:
        raise BufferTooSmallError(f"{have} bytes of room for an object of {size} bytes")
