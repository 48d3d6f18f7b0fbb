"""The scheduler's side: looks prefixes up, plans loads and saves. Never waits long, never raises
for what a request, the pool or a worker says. All methods are called by the scheduler's thread.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from moonpool.core.handoffs import claim_of
from moonpool.vllm import objects, params
from moonpool.vllm.costs import Costs
from moonpool.vllm.courier import Courier
from moonpool.vllm.handoffs import Handoffs, Teller
from moonpool.vllm.jobs import LoadDone, LoadJob, SaveDone, SaveJob
from moonpool.vllm.link import Clock, Link
from moonpool.vllm.load_planner import LoadPlanner
from moonpool.vllm.log import logger
from moonpool.vllm.memory import Failed, Known
from moonpool.vllm.namespace import Namespace
from moonpool.vllm.objects import CLAIMS_MAX
from moonpool.vllm.parts import Keyspace, Tables
from moonpool.vllm.pins import PinBook
from moonpool.vllm.pool_events import PoolEvents
from moonpool.vllm.ranks import Ranks
from moonpool.vllm.save_planner import SavePlanner
from moonpool.vllm.sessions import SessionBook
from moonpool.vllm.settings import Settings
from moonpool.vllm.stats import Tally
from moonpool.vllm.tracker import Tracker

EARLY_MAX = 256
"""Requests that are put off until the worker has said what its memory is like: the first step
says it."""


class SchedulerSide:
    """Everything the connector does in the scheduler's process."""

    def __init__(
        self,
        settings: Settings,
        namespace: Namespace,
        block_size: int,
        link: Link,
        courier: Courier | None = None,
        clock: Clock = time.monotonic,
        keyspace: Keyspace | None = None,
    ) -> None:
        """block_size: tokens in one of vLLM's blocks; keyspace: what is stored of a prefix. The
        link must be started by the caller."""
        self._keys, self.ranks = keyspace or Keyspace(), Ranks()
        self._settings, self._facts, self._link = settings, namespace, link
        self._order, self._epoch, self._ready = "", "", False
        self._asked_early, self._clock = 0, clock
        self._block_size = block_size
        self.stride = stride_of(settings.object_tokens, block_size)
        self.namespace = namespace.with_payload("").fingerprint()
        self.tally = Tally()
        self.pins = PinBook(settings.pinned_blocks_ratio)
        self._courier = courier or Courier()
        self._teller = courier or Courier(threads=1)
        self.handoffs = Handoffs(Teller(self._teller, link), self.tally, clock)
        self._sessions = SessionBook(self._teller, link, self.tally)
        self._known, self._failed = Known(), Failed()
        self._costs = Costs() if settings.cost_model else None
        self._loads = LoadPlanner(
            block_size=block_size,
            stride=self.stride,
            min_load_tokens=settings.min_load_tokens,
            wait_s=settings.lookup_wait_ms / 1000,
            timeout_s=settings.load_timeout_s,
            patience_s=settings.pd_wait_s,
            namespace=lambda: self.namespace,
            costs=self._costs,
            share_blocks=-(-settings.share_prefill_tokens // block_size),
            keyspace=self._keys,
            known=self._known,
            failed=self._failed,
            courier=self._courier,
            link=link,
            tally=self.tally,
            clock=clock,
        )
        self._saves = SavePlanner(
            block_size=block_size,
            stride=self.stride,
            decode=settings.save_decode,
            timeout_s=settings.save_timeout_s,
            pins=self.pins,
            ready=lambda: self._ready,
            parts=self._keys.parts,
            known=self._known,
            failed=self._failed,
            link=link,
            tally=self.tally,
            clock=clock,
        )
        self.events: PoolEvents | None = None
        self._trackers: dict[str, Tracker] = {}
        self._new_saves: list[SaveJob] = []
        self._cancels: list[int] = []
        self._gauges: dict[str, int] = {}

    def publish(self, events: PoolEvents) -> None:
        """Tell these of what is stored and of what turns out to be gone."""
        self.events = self._saves.events = events
        self._known.gone = events.gone

    def worker_is(self, order: str, rank: int = 0) -> None:
        """Take note that a worker is ready and has KV memory of this order; "": it is not.

        Before the first time nothing is looked up, loaded or saved: the order is part of the
        namespace.
        """
        order = self.ranks.order(rank, order)
        self._ready = bool(order)
        if not order or order == self._order:
            return
        self._order = order
        facts = self._facts.with_payload(order)
        self.namespace = facts.fingerprint(self._epoch)
        logger.info("moonpool: namespace %s (%s)", self.namespace.hex(), facts.title)
        logger.info("moonpool: engines share blocks if all of this is equal: %s", facts.describe())

    def on_new_request(self, request: Any) -> None:
        """Ask the pool about a request as soon as it arrives."""
        tracker = self._track(request)
        if self._ready:
            self._loads.ask(tracker)

    def is_early(self) -> bool:
        """Whether to put a request off to the next step: the worker has not said yet what its
        memory is like. Bounded."""
        self._asked_early += not self._order
        return not self._order and self._asked_early <= EARLY_MAX

    def matched_tokens(self, request: Any, local_tokens: int) -> int:
        """Return how many tokens past the engine's own hit a load can bring; 0 if none."""
        tracker = self._tracker(request)
        return self._loads.matched(tracker, local_tokens, wanted=self._ready)

    def after_alloc(self, request: Any, tables: Tables, external_tokens: int) -> None:
        """Plan the load of the tokens that were offered and now have blocks."""
        if external_tokens > 0:
            self._loads.plan(self._tracker(request), tables, external_tokens)

    def take_loads(self) -> list[LoadJob]:
        """Return the loads that begin in this step."""
        self._loads.new_step()
        self.handoffs.beat()
        return self._loads.take()

    def take_cancels(self) -> list[int]:
        """Return the loads that nobody wants any more."""
        cancels, self._cancels = self._cancels, []
        return cancels

    def plan_saves(self, scheduled: dict[str, int], block_state: Any) -> None:
        """Plan the saves of what this step computes.

        scheduled: tokens of each request in this step; block_state: vLLM's current block tables.
        """
        if self._costs is not None:
            self._costs.step(self._clock(), scheduled)
        if not self._settings.saves:
            return
        trackers = self._trackers
        if self._keys.states and block_state:
            self._plan_states(block_state)
        for request_id, tokens in scheduled.items():
            tracker = trackers.get(request_id)
            if tracker is None:
                continue
            computed = tracker.request.num_computed_tokens + tokens
            if tracker.claim is None and self._settings.share_prefill_tokens:
                self._claim(tracker)
            if computed >= tracker.next_at:
                self._plan_save(tracker, computed, block_state)
            if tracker.claim and computed >= tracker.request.num_prompt_tokens:
                self.handoffs.finished(tracker.claim, good=True)
                tracker.claim = 0

    def _plan_states(self, block_state: Any) -> None:
        """Plan the saves of the states that this step leaves at ends of blocks."""
        for request_id, entries in block_state.boundary_state_offloads.items():
            tracker, tables = self._trackers.get(request_id), block_state.get_block_ids(request_id)
            if tracker is None or tables is None or tracker.in_doubt:
                continue
            at: dict[int, dict[int, int]] = {}
            for group, block, tokens in entries:
                at.setdefault(tokens, {})[group] = block
            for tokens, states in at.items():
                self._add(
                    self._saves.plan_state(tracker, tokens, states, tables, self.namespace), tracker
                )

    def _claim(self, tracker: Tracker) -> None:
        """Say which objects of a prompt are being computed from now on."""
        request, stride = tracker.request, self.stride
        computed = request.num_computed_tokens // self._block_size
        first = max(objects.floor(computed, stride), tracker.saved)
        last = min(request.num_prompt_tokens // self._block_size, len(request.block_hashes))
        tracker.claim = 0
        lacking = (last - first) * self._block_size
        if lacking < self._settings.share_prefill_tokens or tracker.stale:
            return
        ends = objects.ends_between(first, objects.floor(last, stride), stride)[:CLAIMS_MAX]
        names = objects.names_at(request.block_hashes, ends)
        keys = objects.keys_of(self.namespace, names)
        if keys:
            tracker.claim = self.handoffs.claim([claim_of(key) for key in keys])

    def take_saves(self) -> list[SaveJob]:
        """Return the saves that begin in this step."""
        saves, self._new_saves = self._new_saves, []
        return saves

    def finished(self, request: Any, tables: Tables) -> dict[str, Any] | None:
        """Save the end of a request whose blocks are about to be freed; return what its client
        may know if another engine waits for it."""
        tracker = self._trackers.get(request.request_id)
        if tracker is None or tracker.request is not request:
            return None
        del self._trackers[request.request_id]
        self.handoffs.finished(tracker.claim or 0, good=False)
        # Aborted while it waited: its blocks do not hold what their hashes say.
        if self._loads.is_loading(tracker):
            self._cancels.append(tracker.generation)
            self.handoffs.finished(tracker.handoff, good=False)
            self._note_session(tracker)
            return None
        computed = self._save_end(tracker, tables)
        self._note_session(tracker)
        if not tracker.handoff:
            return None
        # Of no connector's vocabulary: MultiConnector does not allow two to use the same key.
        return {"moonpool": {"transfer_id": tracker.wish.transfer, "tokens": computed}}

    def _note_session(self, tracker: Tracker) -> None:
        """Say which prefix a request's session uses, as soon as it is in the pool."""
        wish, request = tracker.wish, tracker.request
        if not wish.session:
            return
        prompt = min(request.num_prompt_tokens // self._block_size, len(request.block_hashes))
        # What goes on where a request ended continues its last full object; tails hang beside it.
        ends = sorted({tracker.saved, tracker.tail_end, prompt} - {0})
        names = objects.names_at(request.block_hashes, np.array(ends, np.int32))
        spaces = [] if tracker.stale else self._keys.all_of(self.namespace)
        keys = [key for space in spaces for key in objects.keys_of(space, names)]
        jobs = self._saves.running_of(request.request_id)
        self._sessions.finished(wish.session, keys, jobs, last=wish.last)

    def _save_end(self, tracker: Tracker, tables: Tables) -> int:
        """Save what is left; return how many tokens of the prompt's whole blocks are computed."""
        request = tracker.request
        in_flight = getattr(request, "num_in_flight_tokens", 0)
        computed = min(request.num_computed_tokens - in_flight, request.num_tokens - 1)
        # Nor if another connector was to fill them: no step has run that would show it did.
        if tracker.vouched is not None:
            computed = min(computed, tracker.vouched)
        if computed >= self._block_size and self._settings.saves:
            self._learn(tracker)
            self._add(
                self._saves.plan(tracker, computed, tables, self.namespace, end=True), tracker
            )
        prompt: int = request.num_prompt_tokens // self._block_size
        blocks: int = min(computed // self._block_size, prompt)
        self.handoffs.finished(tracker.handoff, good=blocks == prompt)
        return blocks * self._block_size

    def ended(self, loads: Sequence[LoadDone], saves: Sequence[SaveDone]) -> None:
        """Take in what the worker reports."""
        for save in filter(None, map(self.ranks.saved, saves)):
            self._saves.ended(save, self._trackers)
            self.handoffs.saved(save.job_id)
            self._sessions.saved(save.job_id)
        for load in filter(None, map(self.ranks.loaded, loads)):
            self._loads.ended(load, self._trackers)

    @property
    def has_work(self) -> bool:
        """Whether the engine should go on stepping although it has no requests."""
        return bool(self._new_saves or self._cancels) or self._saves.pending

    def reset(self) -> None:
        """Share nothing any more with what was saved before.

        The new epoch is random: two engines that were reset equally often need not have the same
        weights, so they must not meet again by counting.
        """
        self._epoch = secrets.token_hex(16)
        self.namespace = self._facts.with_payload(self._order).fingerprint(self._epoch)
        self._known.clear()
        self._failed.clear()
        self._saves.reset()
        for tracker in self._trackers.values():
            tracker.reset()

    def take_stats(self) -> dict[str, Any]:
        """Return what was counted since the last call, with the gauges as they are now."""
        data = self.tally.take()
        gauges = {
            "pinned_blocks": self.pins.blocks,
            "save_jobs": self.pins.jobs,
            "loading_requests": self._loads.loading,
            "open_handoffs": self.handoffs.count,
            "pool_connected": int(self._link.connected),
        }
        if data or gauges != self._gauges:
            self._gauges = gauges
            data.update(gauges)
        return data

    def shutdown(self) -> None:
        """Give back leases and threads. Idempotent."""
        self._loads.close()
        self._courier.close()
        self._teller.close()
        self._link.close()

    def _track(self, request: Any) -> Tracker:
        old = self._trackers.get(request.request_id)
        if old is not None:
            self.handoffs.finished(old.handoff, good=False)
            self.handoffs.finished(old.claim or 0, good=False)
        wish, odd = params.read(getattr(request, "kv_transfer_params", None))
        self.tally.count("params_ignored", int(odd))
        tracker = self._trackers[request.request_id] = Tracker(request, wish)
        if wish.sends and not self._settings.saves:
            self.handoffs.refuse(wish.transfer)
        elif wish.sends:
            tracker.handoff = self.handoffs.begin(wish.transfer)
        return tracker

    def _tracker(self, request: Any) -> Tracker:
        tracker = self._trackers.get(request.request_id)
        # The same id may come again for another request.
        return tracker if tracker and tracker.request is request else self._track(request)

    def _plan_save(self, tracker: Tracker, computed: int, block_state: Any) -> None:
        tables = block_state.get_block_ids(tracker.request.request_id) if block_state else None
        doubt, tracker.vouched = tracker.in_doubt, None
        if tables is None or doubt:
            return
        self._learn(tracker)
        # Draft tokens and placeholders past the known tokens have no hash yet.
        computed = min(computed, tracker.request.num_tokens)
        self._add(self._saves.plan(tracker, computed, tables, self.namespace, end=False), tracker)

    def _learn(self, tracker: Tracker) -> None:
        """Use an answer that came too late for a load, so that nothing is saved twice."""
        if tracker.lookup is not None and tracker.lookup.done:
            self._loads.learn(tracker, tracker.lookup)

    def _add(self, jobs: Sequence[SaveJob], tracker: Tracker) -> None:
        for job in jobs:
            self._new_saves.append(job)
            self.handoffs.saving(tracker.handoff, job.job_id)
            self.handoffs.saving(tracker.claim or 0, job.job_id)


def stride_of(object_tokens: int, block_size: int) -> int:
    """Return the blocks in an object: as many as hold ``object_tokens``, at least one."""
    return max(1, -(-object_tokens // block_size))
