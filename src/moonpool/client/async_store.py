"""AsyncStore: Store's verbs under asyncio, on a few threads of its own."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

from moonpool.client.naming import AnyKey
from moonpool.client.store import Codes, Lease, Store, Values
from moonpool.client.watching import Answer
from moonpool.client.wishes import Wishes
from moonpool.core.messages import Changes, Keys, News, ObjectInfo, Status
from moonpool.errors import MasterUnreachableError
from moonpool.transport.base import I64, U64, Pieces

if TYPE_CHECKING:
    from typing import Self

    from moonpool.client.memory import Buffer

THREADS = 4

R = TypeVar("R")
Infos = list[ObjectInfo]
Flags = list[bool]


class AsyncStore:
    """A Store whose methods are awaited; arguments, results and errors are Store's.

    At most ``threads`` calls run at once; others wait. A cancelled call that has begun is waited
    for (it has a deadline), so that nothing touches its buffers afterwards.
    """

    def __init__(self, store: Store, *, threads: int = THREADS) -> None:
        """Take over a store; ``close`` closes it."""
        self.store = store
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="moonpool-async")
        self._closed = False
        self._turn = asyncio.Semaphore(threads)

    @classmethod
    async def connect(
        cls, address: str | None = None, *, threads: int = THREADS, **options: Any
    ) -> Self:
        """Return the pool of a master; see ``Store.connect``."""
        connect = functools.partial(Store.connect, address, **options)
        return cls(await asyncio.to_thread(connect), threads=threads)

    @classmethod
    def local(cls, capacity: int | str = "1GB", *, threads: int = THREADS) -> Self:
        """Return a pool in this process; see ``Store.local``."""
        return cls(Store.local(capacity), threads=threads)

    async def close(self) -> None:
        """Close the store; calls that have begun fail or end. May be called twice."""
        self._closed = True
        await asyncio.to_thread(self.store.close)
        await asyncio.to_thread(self._threads.shutdown, wait=True)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # --- one object ---------------------------------------------------------------------------

    def put(
        self,
        key: AnyKey,
        value: Buffer,
        *,
        parent: AnyKey | None = None,
        replicas: int = 1,
        wishes: Wishes | None = None,
    ) -> Awaitable[bool]:
        """See ``Store.put``."""
        how = {"parent": parent, "replicas": replicas, "wishes": wishes}
        return self._run(self.store.put, key, value, **how)

    def put_from(self, key: AnyKey, buffer: Buffer, size: int) -> Awaitable[bool]:
        """See ``Store.put_from``."""
        return self._run(self.store.put_from, key, buffer, size)

    def put_from_parts(
        self,
        key: AnyKey,
        buffers: Sequence[Buffer],
        *,
        parent: AnyKey | None = None,
        wishes: Wishes | None = None,
    ) -> Awaitable[bool]:
        """See ``Store.put_from_parts``."""
        how = {"parent": parent, "wishes": wishes}
        return self._run(self.store.put_from_parts, key, buffers, **how)

    def get(self, key: AnyKey, *, lease: int | None = None) -> Awaitable[bytes]:
        """See ``Store.get``."""
        return self._run(self.store.get, key, lease=lease)

    def get_into(self, key: AnyKey, buffer: Buffer, *, lease: int | None = None) -> Awaitable[int]:
        """See ``Store.get_into``."""
        return self._run(self.store.get_into, key, buffer, lease=lease)

    def get_into_parts(self, key: AnyKey, buffers: Sequence[Buffer]) -> Awaitable[int]:
        """See ``Store.get_into_parts``."""
        return self._run(self.store.get_into_parts, key, buffers)

    def exists(self, key: AnyKey) -> Awaitable[bool]:
        """See ``Store.exists``."""
        return self._run(self.store.exists, key)

    def size(self, key: AnyKey) -> Awaitable[int]:
        """See ``Store.size``."""
        return self._run(self.store.size, key)

    def remove(self, key: AnyKey, force: bool = False) -> Awaitable[None]:
        """See ``Store.remove``."""
        return self._run(self.store.remove, key, force)

    # --- batches ------------------------------------------------------------------------------

    def put_batch(
        self,
        keys: Sequence[AnyKey],
        values: Sequence[Buffer],
        *,
        parents: Sequence[AnyKey | None] | None = None,
        replicas: int = 1,
    ) -> Awaitable[Codes]:
        """See ``Store.put_batch``."""
        return self._run(self.store.put_batch, keys, values, parents=parents, replicas=replicas)

    def get_batch(self, keys: Sequence[AnyKey]) -> Awaitable[Values]:
        """See ``Store.get_batch``."""
        return self._run(self.store.get_batch, keys)

    def exists_batch(self, keys: Sequence[AnyKey]) -> Awaitable[Flags]:
        """See ``Store.exists_batch``."""
        return self._run(self.store.exists_batch, keys)

    def remove_batch(self, keys: Sequence[AnyKey], force: bool = False) -> Awaitable[Codes]:
        """See ``Store.remove_batch``."""
        return self._run(self.store.remove_batch, keys, force)

    def remove_all(self, prefix: str = "", force: bool = False) -> Awaitable[int]:
        """See ``Store.remove_all``."""
        return self._run(self.store.remove_all, prefix, force)

    def match_prefix(self, keys: Sequence[AnyKey]) -> Awaitable[int]:
        """See ``Store.match_prefix``."""
        return self._run(self.store.match_prefix, keys)

    def match_digests(
        self, namespace: bytes, digests: bytes, stride: int = 1, digest_bytes: int = 16
    ) -> Awaitable[int]:
        """See ``Store.match_digests``."""
        return self._run(self.store.match_digests, namespace, digests, stride, digest_bytes)

    def changes(self, first: int, limit: int = 4096) -> Awaitable[Changes]:
        """See ``Store.changes``."""
        return self._run(self.store.changes, first, limit)

    def blocks(self, after: int = -1, limit: int = 4096) -> Awaitable[Keys]:
        """See ``Store.blocks``."""
        return self._run(self.store.blocks, after, limit)

    def prefetch(
        self, namespace: bytes, digests: bytes, stride: int = 1, digest_bytes: int = 16
    ) -> Awaitable[int]:
        """See ``Store.prefetch``."""
        return self._run(self.store.prefetch, namespace, digests, stride, digest_bytes)

    # --- zero copy ----------------------------------------------------------------------------

    def register_buffer(self, buffer: Buffer) -> None:
        """See ``Store.register_buffer``. Does not wait for anything."""
        self.store.register_buffer(buffer)

    def register_memory(self, address: int, nbytes: int) -> None:
        """See ``Store.register_memory``. Does not wait for anything."""
        self.store.register_memory(address, nbytes)

    def unregister_memory(self, address: int) -> None:
        """See ``Store.unregister_memory``. Does not wait for anything."""
        self.store.unregister_memory(address)

    def unregister_buffer(self, buffer: Buffer) -> None:
        """See ``Store.unregister_buffer``. Does not wait for anything."""
        self.store.unregister_buffer(buffer)

    def put_pieces(
        self,
        keys: Sequence[AnyKey],
        pieces: Pieces,
        *,
        parents: Sequence[AnyKey | None] | None = None,
        replicas: int = 1,
        timeout_s: float | None = None,
        wishes: Wishes | None = None,
    ) -> Awaitable[I64]:
        """See ``Store.put_pieces``."""
        return self._run(
            self.store.put_pieces,
            keys,
            pieces,
            parents=parents,
            replicas=replicas,
            timeout_s=timeout_s,
            wishes=wishes,
        )

    def get_pieces(
        self,
        keys: Sequence[AnyKey],
        pieces: Pieces,
        *,
        lease: int | None = None,
        timeout_s: float | None = None,
        exact: bool = False,
        sizes: U64 | None = None,
    ) -> Awaitable[I64]:
        """See ``Store.get_pieces``."""
        options = {"lease": lease, "timeout_s": timeout_s, "exact": exact, "sizes": sizes}
        return self._run(self.store.get_pieces, keys, pieces, **options)

    def move_at_once(self, nbytes: int) -> Awaitable[None]:
        """See ``Store.move_at_once``."""
        return self._run(self.store.move_at_once, nbytes)

    def open_ways(self) -> Awaitable[int]:
        """See ``Store.open_ways``."""
        return self._run(self.store.open_ways)

    def hold(self, keys: Sequence[AnyKey], ttl_s: float) -> Awaitable[Lease]:
        """See ``Store.hold``."""
        return self._run(self.store.hold, keys, ttl_s)

    def release(self, lease: Lease | int) -> Awaitable[None]:
        """See ``Store.release``."""
        return self._run(self.store.release, lease)

    # --- handoffs -----------------------------------------------------------------------------

    def tell(self, news: Sequence[News]) -> Awaitable[None]:
        """See ``Store.tell``."""
        return self._run(self.store.tell, news)

    def coming(self, keys: Sequence[bytes]) -> Awaitable[int]:
        """See ``Store.coming``."""
        return self._run(self.store.coming, keys)

    def watch(self, keys: Sequence[bytes], transfer: str, wait_s: float, answer: Answer) -> None:
        """See ``Store.watch``. Does not wait for anything."""
        self.store.watch(keys, transfer, wait_s, answer)

    # --- keeping ------------------------------------------------------------------------------

    def pin(self, keys: Sequence[AnyKey], soft_s: float | None = None) -> Awaitable[Codes]:
        """See ``Store.pin``."""
        return self._run(self.store.pin, keys, soft_s)

    def unpin(self, keys: Sequence[AnyKey]) -> Awaitable[Codes]:
        """See ``Store.unpin``."""
        return self._run(self.store.unpin, keys)

    def use_session(self, session: str, keys: Sequence[AnyKey]) -> Awaitable[None]:
        """See ``Store.use_session``."""
        return self._run(self.store.use_session, session, keys)

    def end_session(self, session: str) -> Awaitable[int]:
        """See ``Store.end_session``."""
        return self._run(self.store.end_session, session)

    # --- looking ------------------------------------------------------------------------------

    def stat(self, key: AnyKey) -> Awaitable[ObjectInfo]:
        """See ``Store.stat``."""
        return self._run(self.store.stat, key)

    def list(self, prefix: str = "", namespace: bytes | None = None) -> Awaitable[Infos]:
        """See ``Store.list``; returns all of them at once."""
        return self._run(lambda: [*self.store.list(prefix, namespace)])

    def status(self) -> Awaitable[Status]:
        """See ``Store.status``."""
        return self._run(self.store.status)

    def drain_node(self, node: str, on: bool = True) -> Awaitable[None]:
        """See ``Store.drain_node``."""
        return self._run(self.store.drain_node, node, on)

    async def _run(self, call: Callable[..., R], *arguments: Any, **options: Any) -> R:
        async with self._turn:
            if self._closed:
                raise MasterUnreachableError("the store is closed")
            begun = self._threads.submit(call, *arguments, **options)
            outcome = asyncio.wrap_future(begun)
            try:
                return await asyncio.shield(outcome)
            except asyncio.CancelledError:
                if not begun.cancel():
                    await _ended(outcome)
                raise


async def _ended(outcome: asyncio.Future[Any]) -> None:
    """Wait for a call, whatever comes of it and however often the wait is cancelled."""
    while not outcome.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait([outcome])
    if not outcome.cancelled():
        outcome.exception()
