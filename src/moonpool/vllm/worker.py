"""The worker's side: knows the engine's KV memory, has loads and saves run in the background."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from moonpool.vllm import layout, shards, support
from moonpool.vllm.executor import Runner
from moonpool.vllm.jobs import LoadDone, LoadJob, SaveDone, SaveJob
from moonpool.vllm.layout import RegionTable
from moonpool.vllm.link import Clock
from moonpool.vllm.log import logger
from moonpool.vllm.parts import WHOLE, Part, begins_anew
from moonpool.vllm.runners import Marks, Place, Started, start
from moonpool.vllm.scheduler import stride_of
from moonpool.vllm.settings import Settings
from moonpool.vllm.shards import Held, Split
from moonpool.vllm.spread import Spread, Unit
from moonpool.vllm.stats import Tally

Starter = Callable[[Place], Started]

REST_TURNS, REST_TURN_S = 10, 0.001


class WorkerSide:
    """Everything the connector does in the worker's process."""

    def __init__(
        self,
        settings: Settings,
        name: str,
        num_blocks: int,
        block_size: int,
        parts: Sequence[Part] = WHOLE,
        *,
        ordered: bool = True,
        split: Split = shards.WHOLE,
        rank: int = 0,
        starter: Starter = start,
        clock: Clock = time.monotonic,
    ) -> None:
        """name: shown to people by the pool; ordered: whether the engine's blocks come free only
        when no step can still write to them; parts: the model's, with the layers that this worker
        has;
        split, rank: which KV heads it holds; starter: what makes the transfers run."""
        self._settings, self._name, self._clock = settings, name, clock
        self._num_blocks, self._block_size, self._parts = num_blocks, block_size, tuple(parts)
        self._stride = stride_of(settings.object_tokens, block_size)
        self._ordered, self._starter = ordered, starter
        self._anew = begins_anew(parts)
        self._held = [(part, held) for part in parts for held in split.held_by(rank)]
        turn = split.turn(rank)
        self._spread = Spread([Unit(part.number, held.name, turn) for part, held in self._held])
        self.tally = Tally()
        self.runner: Runner | None = None
        self._marks: Marks | None = None
        self._newest_load = self._newest_save = 0
        self._ended: tuple[list[LoadDone], list[SaveDone]] = ([], [])
        self._bad_blocks: set[int] = set()
        self._failed: set[str] = set()
        self._order = self._device = ""
        self._told: str | None = None

    def register(self, caches: Mapping[str, Any]) -> None:
        """Take the engine's KV tensors, by layer; raises ConfigError for what cannot be used."""
        layers = [name for part in self._parts for names in part.layers for name in names]
        tensor = caches[layers[0]]
        device = self._device = str(tensor.device.type)
        support.check_device(device)
        support.check_mover(self._settings.mover, device)
        tables = tuple(self._probe(part, held, caches) for part, held in self._held)
        object_bytes = [
            table.block_bytes * min(part.span or self._stride, self._stride)
            for (part, _), table in zip(self._held, tables, strict=True)
        ]
        for (part, held), table, size in zip(self._held, tables, object_bytes, strict=True):
            logger.info(
                "moonpool: %d layers%s%s, %d B a block in %d pieces (order %s), %d B an object",
                sum(map(len, part.layers)),
                f" with a window of {part.window} tokens" if part.window else "",
                f", shard {held.name}" if held.name else "",
                table.block_bytes,
                len(table.bases),
                table.order,
                size,
            )
        place = Place(
            self._settings,
            self._name,
            tables,
            max(object_bytes),
            tensor.device,
            self.tally,
            self._clock,
        )
        started = self._starter(place)
        self.runner, self._marks = started.runner, started.marks
        # All shards have the same number of heads, so the order of one is that of all.
        orders = {
            part.number: table.order for (part, _), table in zip(self._held, tables, strict=True)
        }
        self._order = "|".join(orders[part.number] for part in self._parts)

    def _probe(self, part: Part, held: Held, caches: Mapping[str, Any]) -> RegionTable:
        """Return the table of a shard of a part's rows of blocks."""
        tables = []
        for names in part.layers:
            seen = shards.narrowed(caches, names, held) if held.name else caches
            states = 1 if part.state else self._block_size
            tables.append(layout.probe(seen, names, self._num_blocks, states))
        return layout.joined(tables)

    def before_step(self, loads: bool) -> None:
        """Note what is launched before this step, if it begins loads that must come after it."""
        if loads and not self._ordered and self._marks is not None:
            self._marks.before_loads()

    def start_loads(self, jobs: Sequence[LoadJob]) -> None:
        """Begin loads; jobs that were seen before are ignored."""
        new = [job for job in jobs if job.generation > self._newest_load]
        if not new or self.runner is None:
            return
        self._newest_load = max(job.generation for job in new)
        jobs = self._spread.load(new)
        self.runner.load(jobs, self._marks.loads if self._marks is not None else None)

    def cancel_loads(self, generations: Sequence[int]) -> None:
        """Let loads end early; each is still reported, once nothing writes for it any more."""
        known = self._spread.running(generations)
        if known and self.runner is not None:
            self.runner.cancel(known)

    def start_saves(self, jobs: Sequence[SaveJob]) -> None:
        """Begin saves of blocks that this step computed; the step's kernels are launched."""
        new = [job for job in jobs if job.job_id > self._newest_save]
        if not new or self.runner is None:
            return
        self._newest_save = max(job.job_id for job in new)
        jobs, ended = self._spread.save(new)
        self._ended[1].extend(ended)
        if jobs:
            self.runner.save(jobs, self._marks.saves() if self._marks is not None else None)

    def finished_loads(self) -> set[str]:
        """Return the requests whose loads ended; their failed blocks are in ``take_bad_blocks``,
        or, where a part of a hit is of no use, the requests that failed in
        ``take_failed``."""
        if self.runner is None:
            return set()
        loads, saves = self.runner.take()
        requests: set[str] = set()
        for part in loads:
            ended = self._spread.loaded(part)
            if ended is None:
                continue
            done = ended.done
            requests.add(done.request_id)
            self._ended[0].append(done)
            self.tally.count("recomputed_blocks", len(ended.bad))
            if not self._anew:
                self._bad_blocks.update(ended.bad)
            elif ended.failed:
                # What comes before the first bad block is not all there: all is computed anew.
                self._failed.add(done.request_id)
        for save in saves:
            whole = self._spread.saved(save)
            if whole is not None:
                self._ended[1].append(whole)
        return requests

    def rest(self) -> set[str]:
        """Give way for a moment in a step that computes nothing while all loads are waiting for
        another engine; return the requests whose loads ended meanwhile.

        vLLM's processes on a CPU wait for such steps in a loop, a thousand a second. Beside the
        engine that is waited for, perhaps bound to the same core, this leaves it no time.
        """
        ended: set[str] = set()
        loads = self._spread.loads
        if self._device == "cpu" and loads and all(job.patience_s for job in loads):
            for _ in range(REST_TURNS):
                time.sleep(REST_TURN_S)
                ended = self.finished_loads()
                if ended:
                    break
        return ended

    def take_bad_blocks(self) -> set[int]:
        """Return the blocks to recompute, of loads that ``finished_loads`` has returned."""
        bad, self._bad_blocks = self._bad_blocks, set()
        return bad

    def take_failed(self) -> set[str]:
        """Return the requests to compute from their beginning, of those that ``finished_loads``
        has returned."""
        failed, self._failed = self._failed, set()
        return failed

    def take_results(self) -> tuple[list[LoadDone], list[SaveDone]]:
        """Return the results for the scheduler's side."""
        ended, self._ended = self._ended, ([], [])
        return ended

    def take_order(self) -> str | None:
        """Return the payload's order if the worker has become ready, "" if it is not ready any
        more, None if nothing has changed since the last call."""
        now = self._order if self.runner is not None and self.runner.ready else ""
        if now == self._told:
            return None
        self._told = now
        return now

    def shutdown(self) -> None:
        """Stop; nothing touches the engine's memory afterwards. Idempotent."""
        if self.runner is not None:
            self.runner.close()
