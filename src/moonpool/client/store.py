"""Store: the pool as a program sees it.

Keys are text that people choose (``str``), or packed keys (``bytes``, see ``moonpool.core.keys``)
such as engines use. Objects are immutable bytes. All methods may be called from several threads.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Self, cast

import numpy as np

from moonpool import config, config_values
from moonpool.client import memory
from moonpool.client.channel import SocketChannel
from moonpool.client.handing import Handing
from moonpool.client.local import LocalChannel
from moonpool.client.memory import span_of, view_of
from moonpool.client.naming import AnyKey, new_peer, packed, shown
from moonpool.client.transfers import Codes, Lease, Values
from moonpool.client.ways import ENGINES, Ways
from moonpool.client.wishes import Wishes
from moonpool.errors import (
    AlreadyExistsError,
    BufferTooSmallError,
    ChecksumError,
    InvalidArgumentError,
    InvalidWriteError,
    LeaseExpiredError,
    NoSpaceError,
    NotFoundError,
    NotReadyError,
    PinQuotaError,
    TransferError,
    ValueTooLargeError,
    error_for,
)
from moonpool.ha.seeker import Seeker
from moonpool.transport.base import Copier, Pieces
from moonpool.transport.copy import HOST
from moonpool.transport.segment import Segment

if TYPE_CHECKING:
    from moonpool.client.memory import Buffer

__all__ = ["Codes", "Lease", "Store", "Values"]

_EXISTS = AlreadyExistsError.code
PUT_FAILURES = {
    NoSpaceError.code: "the pool has no room for it now, or no node at all",
    TransferError.code: "its bytes could not be moved to the node",
    PinQuotaError.code: "as much is pinned for good as may be",
    InvalidWriteError.code: "it took too long, or its place was taken",
}
GET_FAILURES = {
    NotFoundError.code: "not in the pool",
    NotReadyError.code: "its put has not ended yet",
    TransferError.code: "its bytes could not be moved from the node",
    ChecksumError.code: "the bytes that arrived are not those that were put",
    LeaseExpiredError.code: "reading it took longer than its lease",
}
"""Why, for people; the exception's class says it to programs."""


class Store(Handing):
    """A pool: ``Store.local()`` in this process, or ``Store.connect()`` to one that runs."""

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
        put_near: bool = False,
        verify: bool = False,
        copier: Copier | None = None,
        engines: config.ClientConfig | None = None,
        engine: str | None = None,
    ) -> Self:
        """Return the pool of the master at ``address`` (host:port), or of the leader among
        several: ``host:port,host:port...`` or ``etcd://...`` (reliability.md).

        address: None takes MOONPOOL_HA, else MOONPOOL_MASTER, else the file that
        MOONCAKE_CONFIG_PATH names, else 127.0.0.1:50051. name: shown to people. transports: ways
        to segments, the best first. timeout_s: deadline of a request to the master. put_timeout_s:
        how long a put waits for space. lease_s: how long a read may take before its bytes are
        void. token: the master's; None takes MOONPOOL_TOKEN. connections: to the master, at most.
        wait: with False return
        also if the master is away; calls fail fast until it is there. put_near: put where there is
        room on this host, if there is any, not where there is most. verify: compare also what is
        read in this host's memory with its checksum. copier: reaches the memory of zero-copy calls
        if it is not the processor's, such as a GPU's. engines: how nixl and
        mooncake are to work (the keys nixl_..., mooncake_..., staging); None takes them from the
        environment (MOONPOOL_CLIENT_...), if such a transport is asked for. engine: "mooncake" for
        the Mooncake cluster of the mooncake_master at ``address`` (mooncake.md); None takes
        MOONPOOL_ENGINE, else "moonpool".

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
        foreign = _mooncake(settings, engine, engines)
        if foreign is not None:
            from moonpool.client.mooncake.store import MooncakeStore

            return cast("Self", MooncakeStore.of(foreign, settings.master))
        peer = new_peer(name)
        said = os.environ.get("MOONPOOL_TOKEN", "") if token is None else token
        channel = SocketChannel(
            Seeker(settings.master),
            peer,
            token=said,
            timeout_s=settings.timeout_s,
            connections=settings.connections,
        )
        if engines is None and set(settings.transports) & set(ENGINES):
            engines = config.load(config.ClientConfig)
        staging = (engines or settings).staging
        ways = Ways(
            peer,
            settings.transports,
            settings.timeout_s,
            said,
            copier or HOST,
            engines,
            staging,
        )
        ways.verify(near=verify)
        store = cls(
            channel,
            ways.open,
            put_timeout_s=settings.put_timeout_s,
            lease_s=settings.lease_s,
            put_near=put_near,
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
        self._stop_watching()
        self._reach.close()
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- one object ---------------------------------------------------------------------------

    def put(
        self,
        key: AnyKey,
        value: Buffer,
        *,
        parent: AnyKey | None = None,
        replicas: int = 1,
        wishes: Wishes | None = None,
    ) -> bool:
        """Put an object. Return False if the key is taken; the bytes there are kept.

        parent: the key that this object continues; eviction takes it first. replicas: copies on
        as many hosts; those for which there is no host yet are made when one joins. wishes: more
        of that kind, such as a pin; ``replicas`` does not count then. Raises InvalidKeyError,
        InvalidArgumentError (empty value), ValueTooLargeError, NoSpaceError, PinQuotaError,
        MasterUnreachableError, TransferError.
        """
        view = view_of(value)
        return self._put(key, view, view.nbytes, parent, wishes or Wishes(replicas))

    def put_from(self, key: AnyKey, buffer: Buffer, size: int) -> bool:
        """Put the first ``size`` bytes of a buffer; see ``put``."""
        view = view_of(buffer)
        if not 0 <= size <= view.nbytes:
            raise InvalidArgumentError(f"size={size} of a buffer of {view.nbytes} bytes")
        return self._put(key, view[:size], size, None, Wishes())

    def put_from_parts(
        self,
        key: AnyKey,
        buffers: Sequence[Buffer],
        *,
        parent: AnyKey | None = None,
        wishes: Wishes | None = None,
    ) -> bool:
        """Put one object that consists of all buffers, in order; see ``put``."""
        spans = [span_of(buffer) for buffer in buffers]
        size = sum(span.nbytes for span in spans)
        return self._put(key, memory.parts(spans), size, parent, wishes or Wishes())

    def get(self, key: AnyKey, *, lease: int | None = None) -> bytes:
        """Return an object's bytes. lease: one of ``new_lease``, under which it stays.

        Raises NotFoundError, MasterUnreachableError, TransferError.
        """
        found = bytearray()

        def room(size: int) -> memoryview:
            nonlocal found
            found = memory.taken(bytearray, size)
            return memoryview(found)

        self._get(key, room, lease)
        return bytes(found)

    def get_into(self, key: AnyKey, buffer: Buffer, *, lease: int | None = None) -> int:
        """Copy an object to the start of a writable buffer; return its size in bytes.

        lease: as of ``get``. Raises BufferTooSmallError, and nothing is written; else as ``get``.
        """
        view = view_of(buffer, writable=True)
        taken = 0

        def room(size: int) -> memoryview:
            nonlocal taken
            _check_room(view.nbytes, size)
            taken = size
            return view[:size]

        self._get(key, room, lease)
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

    # --- inside -------------------------------------------------------------------------------

    def _put(
        self,
        key: AnyKey,
        value: memoryview | Pieces,
        size: int,
        parent: AnyKey | None,
        wishes: Wishes,
    ) -> bool:
        if size == 0:
            raise InvalidArgumentError("an object must not be empty")
        name, above = packed(key), b"" if parent is None else packed(parent)
        if name == above:
            raise InvalidArgumentError(f"parent: {shown(key)} cannot continue itself")
        code = self._putter.put_one(name, value, size, above, wishes, self._put_timeout_s)
        if code == InvalidArgumentError.code:
            raise ValueTooLargeError(f"{shown(key)}: no segment can hold {size} bytes")
        if code and code != _EXISTS:
            why = PUT_FAILURES.get(code, "failed")
            raise error_for(code, f"put of {shown(key)}, {size} bytes: {why}")
        return code == 0

    def _get(
        self, key: AnyKey, room: Callable[[int], memoryview | Pieces], lease: int | None = None
    ) -> None:
        code = self._getter.read_one(packed(key), room, lease)
        if code:
            raise error_for(code, f"{shown(key)}: {GET_FAILURES.get(code, 'cannot be read')}")


def _mooncake(
    settings: config.ClientConfig, engine: str | None, engines: config.ClientConfig | None
) -> config.ClientConfig | None:
    """Return how a Mooncake cluster is to be used, None if the pool is a moonpool."""
    asked = os.environ.get("MOONPOOL_CLIENT_ENGINE") or os.environ.get("MOONPOOL_ENGINE")
    if engine is None and engines is None and not asked:
        return None
    chosen = engines or config.load(config.ClientConfig, flags={"engine": engine})
    if (engine or chosen.engine) != "mooncake":
        return None
    names = ("timeout_s", "put_timeout_s", "lease_s")
    return dataclasses.replace(chosen, **{name: getattr(settings, name) for name in names})


def _settings(**options: Any) -> config.ClientConfig:
    """Check options with the rules of the configuration, but take no text for numbers."""
    for name, value in options.items():
        if isinstance(value, str) and name != "master":
            raise InvalidArgumentError(f"{name}: {value!r} is text")
    return config.load(config.ClientConfig, flags=options, env={})


def _check_room(have: int, size: int) -> None:
    if have < size:
        raise BufferTooSmallError(f"{have} bytes of room for an object of {size} bytes")
