"""The engine's way to the pool: opened in the background, given a rest after failures.

An engine starts and serves without a master, says so once, and joins when the master comes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from moonpool.core.messages import Awaited, News
from moonpool.errors import MasterUnreachableError, MoonpoolError
from moonpool.transport.base import I64, Pieces
from moonpool.vllm.log import logger

RETRY_S = (0.25, 0.5, 1.0)
REST_S = (0.5, 1.0, 2.0, 4.0)

Clock = Callable[[], float]
Answer = Callable[[Awaited | None], None]


class Pool(Protocol):
    """What the connector needs of a Store; see moonpool.client.store."""

    def match_digests(
        self, namespace: bytes, digests: bytes, stride: int = 1, digest_bytes: int = 16
    ) -> int:
        """Return how many leading blocks are in the pool."""
        ...

    def exists_batch(self, keys: Sequence[Any]) -> Sequence[bool]:
        """Return which keys are in the pool."""
        ...

    def prefetch(
        self, namespace: bytes, digests: bytes, stride: int = 1, digest_bytes: int = 16
    ) -> int:
        """Have what only disks hold of a prefix read into memory."""
        ...

    @property
    def awaits(self) -> bool:
        """Whether the pool knows of handoffs."""
        ...

    def tell(self, news: Sequence[News]) -> None:
        """Say how handoffs go."""
        ...

    def coming(self, keys: Sequence[Any]) -> int:
        """Return how many leading keys are there or being computed."""
        ...

    def watch(self, keys: Sequence[Any], transfer: str, wait_s: float, answer: Answer) -> None:
        """Have ``answer`` called once when the first key is there, the handoff is over, or time
        is. Does not wait."""
        ...

    @property
    def keeps(self) -> bool:
        """Whether the pool knows sessions."""
        ...

    def use_session(self, session: str, keys: Sequence[Any]) -> None:
        """Say that a session uses what ends with these keys."""
        ...

    def end_session(self, session: str) -> int:
        """Say that a session has ended; return how many objects nobody else uses."""
        ...

    def hold(self, keys: Sequence[Any], ttl_s: float) -> Any:
        """Take a lease on the keys."""
        ...

    def release(self, lease: Any) -> None:
        """End a lease."""
        ...

    def register_memory(self, address: int, nbytes: int) -> None:
        """Let zero-copy calls use this memory."""
        ...

    def open_ways(self) -> int:
        """Open the ways to all segments before they are needed."""
        ...

    def get_pieces(
        self,
        keys: Sequence[Any],
        pieces: Pieces,
        *,
        timeout_s: float | None = None,
        exact: bool = False,
    ) -> I64:
        """Load objects; one code each. When it returns nothing writes to the memory any more."""
        ...

    def put_pieces(
        self,
        keys: Sequence[Any],
        pieces: Pieces,
        *,
        parents: Sequence[Any] | None = None,
        timeout_s: float | None = None,
    ) -> I64:
        """Save objects; one code each. When it returns nothing reads the memory any more."""
        ...

    def remove_batch(self, keys: Sequence[Any], force: bool = False) -> list[int]:
        """Remove objects, with ``force`` also leased ones; one code each."""
        ...

    def close(self) -> None:
        """Give everything up."""
        ...


class Link:
    """Holds the pool once it is open. ``prepare`` runs on each new pool before others see it."""

    def __init__(
        self,
        opener: Callable[[], Pool],
        where: str,
        prepare: Callable[[Pool], None] | None = None,
        clock: Clock = time.monotonic,
    ) -> None:
        """Nothing is opened yet; ``where`` is what messages call the pool."""
        self._opener, self._where, self._prepare, self._clock = opener, where, prepare, clock
        self._pool: Pool | None = None
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._told: set[type[Exception]] = set()
        self._failures = 0
        self._rest_until = 0.0

    def start(self) -> None:
        """Open the pool in the background, again and again until it works."""
        self._thread = threading.Thread(target=self._open, name="moonpool-link", daemon=True)
        self._thread.start()

    def get(self) -> Pool | None:
        """Return the pool, or None while it is not open or rests after a failure."""
        if self._failures and self._clock() < self._rest_until:
            return None
        return self._pool

    @property
    def connected(self) -> bool:
        """Whether the last thing heard of the pool was good."""
        return self._pool is not None and not self._failures

    def worked(self) -> None:
        """Say that a call to the pool succeeded."""
        if self._failures:
            with self._lock:
                self._failures = 0
            logger.info("moonpool: the pool at %s answers again", self._where)

    def failed(self, error: Exception) -> None:
        """Say that a call failed; when the master is out of reach, leave it alone for a while."""
        if not isinstance(error, MasterUnreachableError):
            if type(error) not in self._told:
                self._told.add(type(error))
                logger.warning("moonpool: %s: %s", type(error).__name__, error)
            return
        with self._lock:
            first = self._failures == 0
            self._rest_until = self._clock() + REST_S[min(self._failures, len(REST_S) - 1)]
            self._failures += 1
        if first:
            logger.warning("moonpool: serving without the pool at %s: %s", self._where, error)

    def close(self) -> None:
        """Stop opening and close the pool. Idempotent."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(2.0)
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()

    def _open(self) -> None:
        tries = 0
        while not self._stop.is_set():
            error = self._open_once()
            if error is None:
                if tries:
                    logger.info("moonpool: joined the pool at %s", self._where)
                return
            if tries == 0:
                logger.warning(
                    "moonpool: no pool at %s, serving without it until it comes: %s",
                    self._where,
                    error,
                )
            self._stop.wait(RETRY_S[min(tries, len(RETRY_S) - 1)])
            tries += 1

    def _wonder(self, error: Exception) -> None:
        """Log an exception that nobody expected, once a kind."""
        if type(error) not in self._told:
            self._told.add(type(error))
            logger.error("moonpool: opening the pool failed", exc_info=error)

    def _open_once(self) -> Exception | None:
        try:
            pool = self._opener()
        except (MoonpoolError, OSError) as error:
            return error
        except Exception as error:  # noqa: BLE001 - the thread must go on trying
            self._wonder(error)
            return error
        try:
            if self._prepare is not None:
                self._prepare(pool)
        except Exception as error:  # noqa: BLE001 - the thread must go on trying
            if not isinstance(error, MoonpoolError | OSError):
                self._wonder(error)
            pool.close()
            return error
        with self._lock:
            if not self._stop.is_set():
                self._pool = pool
                return None
        pool.close()
        return None
