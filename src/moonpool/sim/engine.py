"""A vLLM engine as a model: steps that decode, and prefill in chunks, as the scheduler does."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from moonpool.sim.events import Clock, Event
from moonpool.sim.hardware import Hardware
from moonpool.sim.hbm import HbmCache
from moonpool.sim.job import Job
from moonpool.sim.pool import Channel, PoolModel


@dataclass(slots=True, eq=False)
class Run:
    """A job that has its blocks. ``done``: tokens that are there; ``left``: output tokens to come;
    ``named``: blocks held by name; ``found``: blocks of the prompt that are there."""

    job: Job
    done: int
    left: int
    named: list[int]
    nameless: int
    found: int


@dataclass(slots=True)
class Phase:
    """Steps that only decode: how many, when they began, with how much context."""

    began_s: float
    sequences: int
    context: int
    steps: int

    def length_s(self, steps: int, hardware: Hardware) -> float:
        """Return how long the first ``steps`` take; each adds a token to every sequence."""
        read = self.context * steps + self.sequences * steps * (steps - 1) / 2
        return hardware.step_s * steps + hardware.kv_read_s * read


class Engine:
    """Serves jobs in the order of arrival.

    changed: told which blocks came (True) and went (False), as by KV events. place and host are
    its number and the number of its host.
    """

    def __init__(
        self,
        clock: Clock,
        hardware: Hardware,
        block_tokens: int,
        place: int = 0,
        host: int = 0,
        pool: PoolModel | None = None,
        changed: Callable[[bool, list[int]], None] = lambda came, keys: None,
    ) -> None:
        self.busy_s = 0.0
        self.place, self.host = place, host
        self._clock, self._hardware = clock, hardware
        self._block = block_tokens
        self._pool = pool
        self._changed = changed
        self._way = Channel(hardware.local_gb_s)
        self.cache = HbmCache(
            hardware.hbm_tokens // block_tokens, lambda keys: changed(False, keys)
        )
        self._waiting: deque[Job] = deque()
        self._ready: deque[Run] = deque()
        self._prefilling: list[Run] = []
        self._decoding: list[Run] = []
        self._loading = 0
        self._phase: Phase | None = None
        self._stepping: Event | None = None

    def submit(self, job: Job) -> None:
        """Take a job."""
        job.engine = self.place
        self._clock.after(self._hardware.overhead_s, lambda: self._arrive(job))

    def _arrive(self, job: Job) -> None:
        self._waiting.append(job)
        self._wake()

    def _wake(self) -> None:
        """Begin a step, or end a run of decode steps at the next one's boundary."""
        if self._stepping is None:
            self._step()
        elif self._phase is not None:
            self._cut_short(self._phase)

    def _cut_short(self, phase: Phase) -> None:
        passed = self._clock.now_s - phase.began_s
        low, high = 1, phase.steps
        while low < high:
            middle = (low + high) // 2
            if phase.length_s(middle, self._hardware) >= passed:
                high = middle
            else:
                low = middle + 1
        if low < phase.steps and self._stepping is not None:
            self._stepping.cancel()
            phase.steps = low
            self._end_decoding_at(phase)

    def _step(self) -> None:
        """Decide on the next step and when it ends."""
        self._stepping = self._phase = None
        chunks = self._schedule()
        decoding = self._decoding
        if not chunks and not decoding:
            return
        context = sum(run.done for run in decoding)
        if not chunks:
            steps = min(run.left for run in decoding)
            self._phase = Phase(self._clock.now_s, len(decoding), context, steps)
            self._end_decoding_at(self._phase)
            return
        took = self._hardware.step_s + self._hardware.kv_read_s * context
        took += sum(self._hardware.prefill(run.done, end) for run, end in chunks)
        self.busy_s += took
        self._stepping = self._clock.after(took, lambda: self._end_mixed(chunks))

    def _end_decoding_at(self, phase: Phase) -> None:
        ends = phase.began_s + phase.length_s(phase.steps, self._hardware)
        self._stepping = self._clock.at(ends, lambda: self._end_decoding(phase))

    def _end_decoding(self, phase: Phase) -> None:
        self.busy_s += phase.length_s(phase.steps, self._hardware)
        self._advance(phase.steps)
        self._step()

    def _advance(self, steps: int) -> None:
        """Give every decoding sequence so many tokens; those that have all of theirs end."""
        ended = []
        for run in self._decoding:
            run.done += steps
            run.left -= steps
            if run.left <= 0:
                ended.append(run)
        if ended:
            self._decoding = [run for run in self._decoding if run.left > 0]
            for run in ended:
                self._end(run)

    def _schedule(self) -> list[tuple[Run, int]]:
        """Return the prompts that a step computes a part of, and up to where.

        As in vLLM, those that wait are let in, in order, as long as the step has room for tokens
        and the cache for blocks, and what a step will compute counts as there for the next.
        """
        self._prefilling.extend(self._ready)
        self._ready.clear()
        budget = self._hardware.batch_tokens - len(self._decoding)
        chunks: list[tuple[Run, int]] = []
        for run in self._prefilling:
            budget = self._chunk(run, budget, chunks)
        running = len(self._prefilling) + len(self._decoding) + self._loading
        while self._waiting and running < self._hardware.sequences and budget > 0:
            placed = self._placed(self._waiting[0])
            if placed is None:
                break
            self._waiting.popleft()
            running += 1
            if not self._begin_load(placed):
                self._prefilling.append(placed)
                budget = self._chunk(placed, budget, chunks)
        return chunks

    def _chunk(self, run: Run, budget: int, chunks: list[tuple[Run, int]]) -> int:
        """Add a prompt's next part to a step; return the tokens that the step has left."""
        end = min(run.job.prompt_tokens, run.done + budget)
        if end <= run.done:
            return budget
        chunks.append((run, end))
        self._name(run, min(len(run.job.keys), end // self._block))
        return budget - (end - run.done)

    def _end_mixed(self, chunks: list[tuple[Run, int]]) -> None:
        self._advance(1)
        finished = False
        for run, end in chunks:
            run.done = end
            if end >= run.job.prompt_tokens:
                finished = True
                self._prefilled(run)
        if finished:
            self._prefilling = [run for run in self._prefilling if run.done < run.job.prompt_tokens]
        self._step()

    def _placed(self, job: Job) -> Run | None:
        block = self._block
        hits = self.cache.match(job.keys)
        blocks = -(-(job.prompt_tokens + job.output_tokens) // block)
        named = job.keys[:hits]
        if not self.cache.take(named, blocks - hits):
            return None
        # Engines compute at least the last token, whatever they have.
        job.local_tokens = min(hits * block, job.prompt_tokens - 1)
        return Run(job, job.local_tokens, job.output_tokens, named, blocks - hits, hits)

    def _begin_load(self, run: Run) -> bool:
        pool, job, hits = self._pool, run.job, run.found
        if pool is None or (found := pool.match(job.keys)) <= hits:
            return False
        keys = job.keys[hits:found]
        block_bytes = self._block * self._hardware.kv_bytes
        ends = pool.load(self._clock.now_s, keys, block_bytes, self.host, self._way)
        self._loading += 1
        self._clock.at(ends, lambda: self._loaded(run, found))
        return True

    def _loaded(self, run: Run, blocks: int) -> None:
        self._loading -= 1
        job = run.job
        run.done = min(blocks * self._block, job.prompt_tokens - 1)
        job.pool_tokens = run.done - job.local_tokens
        self._name(run, blocks)
        self._ready.append(run)
        self._wake()

    def _name(self, run: Run, blocks: int) -> None:
        """Let others find the prompt's first blocks."""
        if blocks <= run.found:
            return
        new = self.cache.name(run.job.keys[run.found : blocks])
        run.found = blocks
        # Blocks that another request has named meanwhile stay without a name until the end.
        run.nameless -= len(new)
        run.named = [*run.named, *new]
        if new:
            self._changed(True, new)

    def _prefilled(self, run: Run) -> None:
        job = run.job
        if self._pool is not None:
            self._pool.put(job.keys, self.host)
        job.first_s = self._clock.now_s
        for told in job.on_first:
            told()
        run.left -= 1
        if run.left <= 0:
            self._end(run)
        else:
            self._decoding.append(run)

    def _end(self, run: Run) -> None:
        self.cache.give(run.named, run.nameless)
        run.job.end_s = self._clock.now_s
        for told in run.job.on_end:
            told()
