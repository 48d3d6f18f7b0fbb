"""Prefix lookups: asked when a request arrives, answered by the time it is scheduled."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from moonpool.core.keys import DIGEST_BYTES
from moonpool.errors import MoonpoolError
from moonpool.vllm import objects
from moonpool.vllm.courier import Courier
from moonpool.vllm.link import Clock, Link, Pool
from moonpool.vllm.objects import CLAIMS_MAX, pack_digests
from moonpool.vllm.parts import Keyspace
from moonpool.vllm.reach import Asker, reach
from moonpool.vllm.stats import Tally


class Lookup:
    """One question to the master: how many leading blocks are in the pool?"""

    __slots__ = ("_answered", "asked_at", "coming", "count", "learned", "preemptions")

    def __init__(self, asked_at: float, preemptions: int) -> None:
        """``preemptions`` says at which life of its request it was asked."""
        self._answered = threading.Event()
        self.asked_at, self.preemptions = asked_at, preemptions
        self.count: int | None = None
        self.coming = 0
        """Leading blocks that are there or being computed by other engines."""
        self.learned = False
        """Whether the scheduler has taken note of the answer."""

    def answer(self, count: int | None) -> None:
        """Set the answer; None when there will be none."""
        self.count = count
        self._answered.set()

    @property
    def done(self) -> bool:
        """Whether the answer is there."""
        return self._answered.is_set()

    def wait(self, timeout_s: float) -> bool:
        """Wait for the answer, at most so long; return whether it is there."""
        return self._answered.wait(timeout_s)


class Lookups:
    """Asks through the courier and bounds how long a step of the engine waits for answers."""

    def __init__(
        self,
        courier: Courier,
        link: Link,
        namespace: Callable[[], bytes],
        stride: int,
        wait_s: float,
        tally: Tally,
        clock: Clock,
        worth: int = 0,
        keyspace: Keyspace | None = None,
    ) -> None:
        """stride: blocks in an object; wait_s: longest wait in one step, over all requests; worth:
        so many blocks that are missing, whether others compute them; 0: never; keyspace: what an
        end of a prefix has objects in."""
        self._worth, self._keys = worth, keyspace or Keyspace()
        self._courier, self._link, self._namespace = courier, link, namespace
        self._stride, self._wait_s, self._tally, self._clock = stride, wait_s, tally, clock
        self._left_s = wait_s

    def new_step(self) -> None:
        """Give the next step its full time to wait."""
        self._left_s = self._wait_s

    def ask(self, block_hashes: Sequence[bytes], preemptions: int) -> Lookup | None:
        """Send a lookup of these blocks on its way; None when the pool cannot be asked now."""
        if self._link.get() is None:
            self._tally.count("lookups_unavailable")
            return None
        lookup = Lookup(self._clock(), preemptions)
        # The request's own list grows while it decodes; the courier needs it as it is now.
        hashes, namespace = list(block_hashes), self._namespace()
        if not self._courier.submit(lambda: self._fetch(lookup, namespace, hashes)):
            self._tally.count("lookups_refused")
            return None
        self._tally.count("lookups")
        return lookup

    def settle(self, lookup: Lookup) -> bool:
        """Wait for the answer as long as this step may; return whether it is there."""
        if lookup.done:
            return True
        if self._left_s <= 0:
            return False
        began = self._clock()
        done = lookup.wait(self._left_s)
        self._left_s -= max(0.0, self._clock() - began)
        return done

    def _fetch(self, lookup: Lookup, namespace: bytes, hashes: list[bytes]) -> None:
        count: int | None = None
        pool, digests = self._link.get(), pack_digests(hashes)
        try:
            if pool is not None:
                began = self._clock()
                count = self._reach(pool, namespace, digests)
                lookup.coming = self._coming(pool, namespace, hashes, count)
                self._tally.observe("lookup_seconds", self._clock() - began)
                self._link.worked()
        except (MoonpoolError, OSError) as error:
            self._tally.count("lookups_failed")
            self._link.failed(error)
        finally:
            # Whatever happens, the scheduler must not wait for it any longer.
            lookup.answer(None if count is None else min(max(count, 0), len(hashes)))
        if pool is not None and count:
            self._prefetch(pool, namespace, digests[: count * DIGEST_BYTES])

    def _reach(self, pool: Pool, namespace: bytes, digests: bytes) -> int:
        """Return how many leading blocks the pool can bring."""

        ask = Asker(
            lambda at, asked: int(pool.match_digests(at, asked, self._stride)),
            lambda at, asked: pool.exists_batch(objects.keys_of(at, asked)),
        )
        return reach(ask, self._keys, namespace, digests, self._stride)

    def _prefetch(self, pool: Pool, namespace: bytes, digests: bytes) -> None:
        """Have what is on disks read into memory while the request waits to be scheduled."""
        blocks = len(digests) // DIGEST_BYTES
        try:
            for part in self._keys.parts:
                begin = objects.floor(part.first_needed(blocks), self._stride) * DIGEST_BYTES
                for at in self._keys.of(namespace, part.number):
                    began = pool.prefetch(at, digests[begin:], self._stride)
                    self._tally.count("prefetches", began)
        except (MoonpoolError, OSError) as error:
            self._link.failed(error)

    def _coming(self, pool: Pool, namespace: bytes, hashes: list[bytes], count: int) -> int:
        """Return the blocks that are there or being computed, whole objects."""
        there = objects.floor(count, self._stride)
        if not self._worth or len(hashes) - there < self._worth or not pool.awaits:
            return 0
        ends = objects.ends_between(there, len(hashes), self._stride)[:CLAIMS_MAX]
        ends = ends[ends % self._stride == 0]
        names = objects.names_at(hashes, ends)
        claimed = pool.coming(objects.keys_of(namespace, names)) if len(ends) else 0
        return int(ends[claimed - 1]) if claimed else 0
