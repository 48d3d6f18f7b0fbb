"""Hits and loads: how much of a request's prefix the pool can bring, and the job that brings it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from moonpool.core.keys import DIGEST_BYTES, Key
from moonpool.errors import (
    ChecksumError,
    LeaseExpiredError,
    MoonpoolError,
    NotFoundError,
    TransferError,
)
from moonpool.vllm import objects
from moonpool.vllm.costs import Costs
from moonpool.vllm.courier import Courier
from moonpool.vllm.jobs import LoadDone, LoadJob
from moonpool.vllm.leases import Leases
from moonpool.vllm.link import Clock, Link
from moonpool.vllm.lookups import Lookup, Lookups
from moonpool.vllm.memory import Failed, Known
from moonpool.vllm.parts import Keyspace, Part, Tables, begins_anew
from moonpool.vllm.stats import Tally
from moonpool.vllm.tracker import Tracker

REFRESH_AFTER_S = 2.0
"""An answer older than this is asked for again before it is used."""
CLAIM_WAIT_S, CLAIM_WAIT_S_MIN = 2.0, 0.2
"""Longest wait for what another engine computes unasked, while the own speed is not known; and
shortest."""
LEASE_MARGIN_S = 5.0
LEASE_S_MAX = 600.0
_BAD_OBJECT = frozenset(
    cls.code
    for cls in (NotFoundError, ChecksumError, LeaseExpiredError, TransferError, MoonpoolError)
)
"""Codes that speak of the object itself, not of the way to it."""


class LoadPlanner:
    """Turns the pool's answers into offers to vLLM and offers into jobs."""

    def __init__(
        self,
        *,
        block_size: int,
        stride: int,
        min_load_tokens: int,
        wait_s: float,
        timeout_s: float,
        patience_s: float,
        namespace: Callable[[], bytes],
        costs: Costs | None,
        share_blocks: int,
        keyspace: Keyspace,
        known: Known,
        failed: Failed,
        courier: Courier,
        link: Link,
        tally: Tally,
        clock: Clock,
    ) -> None:
        """stride: blocks in an object; wait_s: longest wait for answers in a step; patience_s: for
        blocks that another engine computes; share_blocks: prompts that lack so many wait for
        engines that compute them unasked (0: none); keyspace: what is stored of a prefix."""
        self._block_size, self._stride, self._patience_s = block_size, stride, patience_s
        self._min_gain = max(min_load_tokens, block_size)
        self._namespace, self._known, self._failed = namespace, known, failed
        self._costs, self._keys = costs, keyspace
        self._anew = begins_anew(keyspace.parts)
        self._courier, self._link, self._tally, self._clock = courier, link, tally, clock
        self._lookups = Lookups(
            courier, link, namespace, stride, wait_s, tally, clock, share_blocks, keyspace
        )
        self._leases = Leases(courier, link, min(timeout_s + LEASE_MARGIN_S, LEASE_S_MAX))
        self._generations = itertools.count(1)
        self._loading: dict[int, list[Key]] = {}
        self._began: dict[int, tuple[float, int]] = {}
        self._new: list[LoadJob] = []

    @property
    def loading(self) -> int:
        """Loads in progress."""
        return len(self._loading)

    def is_loading(self, tracker: Tracker) -> bool:
        """Whether the request's blocks are still being written."""
        return tracker.generation in self._loading

    def new_step(self) -> None:
        """Give the next step its full time to wait for answers."""
        self._lookups.new_step()

    def take(self) -> list[LoadJob]:
        """Return the loads that begin in this step."""
        jobs, self._new = self._new, []
        return jobs

    def ask(self, tracker: Tracker) -> Lookup | None:
        """Send a lookup on its way if the request is worth one."""
        request = tracker.request
        long_enough = len(request.block_hashes) * self._block_size >= self._min_gain
        if not long_enough or request.skip_reading_prefix_cache:
            return None
        hashes = request.block_hashes[: self._last_end(request)]
        lookup = self._lookups.ask(hashes, request.num_preemptions)
        tracker.lookup = lookup or tracker.lookup
        return lookup

    def matched(self, tracker: Tracker, local_tokens: int, *, wanted: bool = True) -> int:
        """Return how many tokens past the engine's own hit a load can bring; 0 if none.

        local_tokens: the engine's own hit, whole blocks; wanted: whether this engine loads at
        all. May be called any number of times.
        """
        tracker.local_tokens, tracker.offered_blocks = local_tokens, 0
        tracker.vouched, tracker.next_at, tracker.waits = local_tokens, 0, False
        if not wanted or tracker.request.skip_reading_prefix_cache:
            return 0
        usable = self._promised(tracker) or self._usable(tracker, self._count(tracker))
        usable = self._beside_window(tracker, self._claimed(tracker, usable))
        gain = usable * self._block_size - local_tokens
        if gain < self._min_gain:
            self._tally.count("short_hits", int(gain > 0))
            return 0
        if not self._is_worth_loading(tracker, gain):
            return 0
        tracker.offered_blocks = usable
        return gain

    def plan(self, tracker: Tracker, tables: Tables, external_tokens: int) -> None:
        """Make the jobs that load ``external_tokens`` past the engine's own hit."""
        first = tracker.local_tokens // self._block_size
        last = first + external_tokens // self._block_size
        generation = tracker.generation = next(self._generations)
        tracker.vouched = last * self._block_size
        jobs = [self._job(tracker, part, tables, first, last) for part in self._keys.parts]
        self._new += jobs
        keys = self._loading[generation] = [
            key
            for job in jobs
            for space in self._keys.of(job.namespace, job.part)
            for key in objects.keys_of(space, job.names)
        ]
        if keys and not tracker.waits:
            self._began[generation] = self._clock(), external_tokens
        if keys:
            self._leases.take(generation, keys)
        self._tally.count("hit_tokens", external_tokens)
        self._tally.count("claimed_hits", int(tracker.waits and not tracker.wish.receives))

    def ended(self, done: LoadDone, trackers: dict[str, Tracker]) -> None:
        """Note how a load ended; one that failed is not offered to the request again."""
        keys = self._loading.pop(done.generation, None)
        if keys is None:
            return
        self._leases.give_back(done.generation)
        now = self._clock()
        began, tokens = self._began.pop(done.generation, (0.0, 0))
        if self._costs is not None and tokens and not done.failed:
            self._costs.loaded(tokens, now - began)
        for code, mark in done.failed:
            if code in _BAD_OBJECT:
                self._failed.add(objects.digest_of(mark), now)
                self._known.forget((mark,), now)
        corrupt = {
            objects.digest_of(mark) for code, mark in done.failed if code == ChecksumError.code
        }
        if corrupt:
            # Of all parts and shards: which of a worker's shards it was is not said.
            self._remove([key for key in keys if key[-DIGEST_BYTES:] in corrupt])
            for part in self._keys.parts:
                self._known.forget([objects.mark(one, part.number) for one in corrupt], now)
        tracker = trackers.get(done.request_id)
        if tracker is None or tracker.generation != done.generation:
            return
        tracker.generation = 0
        if tracker.waits:
            # What came is in the pool: it need not be saved from here.
            tracker.found(done.good_blocks, self._stride)
            gain = done.good_blocks * self._block_size - tracker.local_tokens
            self._tally.count("remote_tokens", max(0, gain))
        if done.good_blocks < tracker.offered_blocks or done.failed or not keys:
            if tracker.vouched is not None:
                # vLLM may hear of it later: when another connector has filled its blocks.
                tracker.vouched = min(tracker.vouched, done.good_blocks * self._block_size)
            tracker.cap = 0 if self._anew else done.good_blocks
            tracker.lost(done.good_blocks, self._stride)

    def learn(self, tracker: Tracker, lookup: Lookup) -> int:
        """Note what an answer says is there and what is not; return the blocks there."""
        count = lookup.count
        if count is None or lookup.learned:
            return count or 0
        lookup.learned = True
        tracker.found(count, self._stride)
        # What we believed to be in the pool and is not must be saved again.
        hashes, last = tracker.request.block_hashes, self._last_end(tracker.request)
        ends = objects.ends_between(objects.floor(count, self._stride), last, self._stride)
        missing = objects.split_names(objects.names_at(hashes, ends[ends > count]))
        for part in self._keys.parts:
            marks = [objects.mark(digest, part.number) for digest in missing]
            # A tail may be there all the same, behind what is missing: nobody is told.
            tails = [marks.pop()] if marks and last % self._stride else []
            self._known.forget(marks, lookup.asked_at)
            self._known.forget(tails, lookup.asked_at, quiet=True)
        return count

    def _last_end(self, request: Any) -> int:
        """Return where a hit of all that is known of a request would end."""
        if self._keys.states:
            # The last token is always computed here, and from the state before it.
            return int(min(len(request.block_hashes), (request.num_tokens - 1) // self._block_size))
        return len(request.block_hashes)

    def close(self) -> None:
        """Give all leases back."""
        self._leases.close()

    def _is_worth_loading(self, tracker: Tracker, gain: int) -> bool:
        """Decide once for each hit; what another engine computes for this one is always taken."""
        if self._costs is None or tracker.waits:
            return True
        if tracker.judged[0] != gain:
            worth = self._costs.worth_loading(gain)
            tracker.judged = gain, worth
            self._tally.count("slow_hits", int(not worth))
        return tracker.judged[1]

    def _promised(self, tracker: Tracker) -> int:
        """Return the blocks of a prompt that another engine is computing for this one; 0 if none,
        or if they are in the pool already."""
        request, pool = tracker.request, self._link.get()
        first_try = tracker.cap is None and not request.num_preemptions and not tracker.stale
        if not (tracker.wish.receives and first_try and self._patience_s) or self._keys.states:
            return 0
        if pool is None or not pool.awaits:
            return 0
        count = min(request.num_prompt_tokens // self._block_size, len(request.block_hashes))
        usable = self._usable(tracker, count)
        lookup = tracker.lookup
        there = 0 if lookup is None or not lookup.done else self.learn(tracker, lookup)
        tracker.waits = usable > there
        return usable if tracker.waits else 0

    def _claimed(self, tracker: Tracker, usable: int) -> int:
        """Return the blocks of a hit with those that other engines are computing."""
        lookup, first_try = tracker.lookup, tracker.cap is None
        if tracker.waits or lookup is None or not lookup.done or not first_try or tracker.stale:
            return usable
        coming = self._usable(tracker, lookup.coming)
        if coming <= usable or tracker.request.num_preemptions:
            return usable
        tracker.waits = True
        return coming

    def _beside_window(self, tracker: Tracker, usable: int) -> int:
        """Return the blocks of a hit of which vLLM keeps all that it needs: of a whole prompt it
        computes the last token again, for which the window begins one token earlier."""
        whole = usable * self._block_size >= tracker.request.num_tokens
        if whole and any(part.window % self._block_size == 1 for part in self._keys.parts):
            return objects.floor(usable - 1, self._stride)
        return usable

    def _count(self, tracker: Tracker) -> int:
        """Return how many leading blocks the pool holds, as far as the answer is there."""
        lookup = tracker.lookup
        if lookup is None or self._stale(lookup, tracker):
            lookup = self.ask(tracker)
        if lookup is None:
            return 0
        if not lookup.done:
            began = self._clock()
            settled = self._lookups.settle(lookup)
            self._tally.observe("wait_seconds", self._clock() - began)
            if not settled:
                self._tally.count("lookups_late")
                return 0
        return self.learn(tracker, lookup)

    def _stale(self, lookup: Lookup, tracker: Tracker) -> bool:
        """Whether the answer belongs to another life of the request, or is old."""
        if lookup.preemptions != tracker.request.num_preemptions:
            return True
        return lookup.done and self._clock() - lookup.asked_at > REFRESH_AFTER_S

    def _usable(self, tracker: Tracker, count: int) -> int:
        """Return the blocks of a hit that are not known to fail."""
        hashes, now = tracker.request.block_hashes, self._clock()
        count = min(count, len(hashes))
        if tracker.cap is not None and count > tracker.cap:
            count = 0 if self._keys.states else objects.floor(tracker.cap, self._stride)
        if len(self._failed):
            for end in objects.ends_between(0, count, self._stride).tolist():
                if self._failed.has(objects.digest_of(hashes[end - 1]), now):
                    return 0 if self._keys.states else objects.floor(end - 1, self._stride)
        return count

    def _job(self, tracker: Tracker, part: Part, tables: Tables, first: int, last: int) -> LoadJob:
        """Return the job that fills a part's blocks [first, last) of the request."""
        request, ends = tracker.request, np.empty(0, np.int32)
        # Before a window there are null blocks: nothing is loaded there.
        first = part.first_kept(tables, first, last)
        if first < last <= tracker.offered_blocks and part.has(tables, first, last):
            ends = objects.ends_between(first, last, self._stride)
        # Otherwise the request waits all the same: for a load of nothing, which fails at once.
        starts = part.starts(ends, self._stride)
        begin = int(starts[0]) if len(starts) else first
        return LoadJob(
            request.request_id,
            tracker.generation,
            self._namespace(),
            objects.names_at(request.block_hashes, ends),
            starts,
            ends,
            np.array(part.rows(tables, begin, last), np.int32),
            first,
            *self._waits_for(tracker, last - first),
            part.number,
        )

    def _waits_for(self, tracker: Tracker, blocks: int) -> tuple[str, float]:
        """Return the handoff, "" for claims, and how long to wait for them."""
        if not tracker.waits:
            return "", 0.0
        if tracker.wish.receives:
            return tracker.wish.transfer, self._patience_s
        compute_s = self._costs.compute_s(blocks * self._block_size) if self._costs else None
        # Waiting is never much worse than having computed it here.
        return "", CLAIM_WAIT_S if compute_s is None else max(CLAIM_WAIT_S_MIN, compute_s)

    def _remove(self, keys: list[Key]) -> None:
        """Take objects whose bytes are wrong out of the pool, or nobody could ever replace them."""
        self._tally.count("corrupt_objects", len(keys))

        def errand() -> None:
            pool = self._link.get()
            if pool is not None:
                try:
                    pool.remove_batch(keys, force=True)
                except (MoonpoolError, OSError) as error:
                    self._link.failed(error)

        self._courier.submit(errand)
