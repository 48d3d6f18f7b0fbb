"""A vLLM engine at any scale: continuous batching, prefill in chunks, one cost for each event.

Decoding sequences are not walked through: all of them get one token a step, so the step at which
each ends is known when it begins, and a run of steps without change is one event.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from moonpool.sim.events import Clock, Event
from moonpool.sim.fleet.caches import Cache
from moonpool.sim.fleet.request import Request
from moonpool.sim.hardware import Hardware

ROUNDING = 1e-9


@dataclass(slots=True, eq=False)
class Sequence:
    """A request that has its blocks. done: tokens that are there; found: blocks that others can
    find; nameless: blocks that they cannot; left: tokens that decoding it will give."""

    request: Request
    done: int
    nameless: int
    found: int
    first_seen: bool = False
    left: int = 0


@dataclass(slots=True)
class Crowd:
    """The engines of a host: how many are at work."""

    at_work: int = 0


Load = Callable[["Engine", Sequence, Callable[[int], None]], bool]
"""Begins to load what lies behind a sequence's own blocks; False if there is nothing. Calls back
with how many blocks are there then."""


class Engine:
    """Serves requests in the order of arrival.

    lookup: asked when a request arrives, for when the pool's answer will be there. prefilled: told
    when a prompt's last chunk has been computed; decodes: whether this engine goes on with it.
    crowd: the engines of its host, which may slow one another down.
    """

    def __init__(
        self,
        clock: Clock,
        hardware: Hardware,
        cache: Cache,
        block_tokens: int,
        place: int = 0,
        host: int = 0,
        *,
        lookup: Callable[[Request], float] | None = None,
        load: Load | None = None,
        prefilled: Callable[[Engine, Sequence], None] = lambda engine, sequence: None,
        decodes: bool = True,
        crowd: Crowd | None = None,
    ) -> None:
        self.place, self.host = place, host
        self.busy_s = 0.0
        self._crowd, self._at_work, self._slower = crowd or Crowd(), False, 1.0
        self.computed_tokens = self.steps = 0
        self.cache = cache
        self._clock, self.hardware, self._block = clock, hardware, block_tokens
        self._lookup, self._load = lookup, load
        self._prefilled, self._decodes = prefilled, decodes
        self._cpu_free_s = 0.0
        self._waiting: deque[Request] = deque()
        self._ready: deque[Sequence] = deque()
        self._joining: list[Sequence] = []
        self._prefilling: list[Sequence] = []
        self._decoding: list[tuple[int, int, Sequence]] = []
        self._made = 0
        self._fresh: list[Sequence] = []
        self._context = 0
        self._step_number = 0
        self._loading = 0
        self._stepping: Event | None = None
        self._phase: tuple[float, int] | None = None

    def submit(self, request: Request) -> None:
        """Take a request: its text is made tokens by one thread, in turn, then it waits."""
        request.engine = self.place
        hardware = self.hardware
        cost = hardware.overhead_s + hardware.tokenise_s * request.prompt_tokens
        self._cpu_free_s = max(self._clock.now_s, self._cpu_free_s) + cost
        self._clock.at(self._cpu_free_s, lambda: self._look_up(request))

    def _look_up(self, request: Request) -> None:
        if self._lookup is None:
            self._arrive(request)
        else:
            self._clock.at(self._lookup(request), lambda: self._arrive(request))

    def _arrive(self, request: Request) -> None:
        self._waiting.append(request)
        self._wake()

    def room(self, request: Request, *, computed: bool = False) -> Sequence | None:
        """Take blocks for a request; None while there are none. computed: another engine has
        computed its prompt."""
        block, cache = self._block, self.cache
        hits = cache.match(request)
        if not computed:
            # Engines compute at least the last token, whatever they have.
            hits = min(hits, (request.prompt_tokens - 1) // block)
        blocks = -(-(request.prompt_tokens + request.output_tokens * self._decodes) // block)
        if not cache.take(request, hits, blocks - hits):
            return None
        return Sequence(request, hits * block, blocks - hits, hits)

    def join(self, sequence: Sequence) -> None:
        """Decode a prompt that another engine has computed and whose KV is here."""
        self.name(sequence, len(sequence.request.keys))
        sequence.done = sequence.request.prompt_tokens
        self._joining.append(sequence)
        self._wake()

    def name(self, sequence: Sequence, blocks: int) -> None:
        """Let others find the prompt's first blocks."""
        if blocks <= sequence.found:
            return
        # Blocks that another request has named meanwhile stay without a name until the end.
        sequence.nameless -= self.cache.name(sequence.request, sequence.found, blocks)
        sequence.found = blocks

    def give(self, sequence: Sequence) -> None:
        """Let go of a sequence's blocks; named ones are kept while there is room."""
        self.cache.give(sequence.request, sequence.nameless)
        self._wake()

    def _wake(self) -> None:
        """Begin a step, or end a run of decode steps at the next one's boundary."""
        if self._stepping is None:
            self._step()
        elif self._phase is not None:
            self._cut_short(*self._phase)

    def _decode_s(self) -> tuple[float, float]:
        """Return a and b of the a x steps + b x steps^2 seconds that decoding alone takes."""
        hardware, sequences = self.hardware, len(self._decoding)
        square = hardware.kv_read_s * sequences / 2
        each = hardware.step_s + hardware.weights_s + hardware.sequence_s * sequences
        return each + hardware.kv_read_s * self._context - square, square

    def _length_s(self, steps: int) -> float:
        """Return how long so many steps take that only decode."""
        each, square = self._decode_s()
        length_s = max(self.hardware.launch_s * steps, each * steps + square * steps * steps)
        return self._slower * length_s

    def _steps_in(self, passed_s: float, most: int) -> int:
        """Return after how many steps the one ends that is under way after so long."""
        passed_s /= self._slower
        each, square = self._decode_s()
        root = math.sqrt(each * each + 4 * square * passed_s)
        steps = 2 * passed_s / (each + root) if each + root else most
        if self.hardware.launch_s:
            steps = min(steps, passed_s / self.hardware.launch_s)
        # Rounding may not add a step where one ends just now.
        return max(1, min(most, math.ceil(steps - ROUNDING)))

    def _cut_short(self, began_s: float, steps: int) -> None:
        low = self._steps_in(self._clock.now_s - began_s, steps)
        if low < steps and self._stepping is not None:
            self._stepping.cancel()
            self._run_until(began_s, low)

    def _run_until(self, began_s: float, steps: int) -> None:
        self._phase = (began_s, steps)
        self._stepping = self._clock.at(
            began_s + self._length_s(steps), lambda: self._end_phase(steps)
        )

    def _step(self) -> None:
        """Decide on the next step, or run of steps, and when it ends."""
        self._stepping = self._phase = None
        for sequence in self._joining:
            self._start_decoding(sequence)
        self._joining.clear()
        chunks = self._schedule()
        self._join_crowd(bool(chunks or self._decoding))
        if not chunks:
            if self._decoding:
                # A first token is an event of its own, and so is each step that others slow down.
                single = self._fresh or self.hardware.contention
                steps = 1 if single else self._decoding[0][0] - self._step_number
                self._run_until(self._clock.now_s, steps)
            return
        hardware = self.hardware
        took = hardware.step_s + hardware.kv_read_s * self._context
        took += hardware.sequence_s * len(self._decoding)
        took += hardware.chunks([(sequence.done, end) for sequence, end in chunks])
        took = self._slower * max(took, hardware.launch_s)
        self.busy_s += took
        self._stepping = self._clock.after(took, lambda: self._end_mixed(chunks))

    def _join_crowd(self, at_work: bool) -> None:
        if at_work != self._at_work:
            self._at_work = at_work
            self._crowd.at_work += 1 if at_work else -1
        self._slower = 1.0 + self.hardware.contention * max(0, self._crowd.at_work - 1)

    def _end_phase(self, steps: int) -> None:
        self.busy_s += self._length_s(steps)
        self._advance(steps)
        self._step()

    def _start_decoding(self, sequence: Sequence) -> None:
        sequence.left = sequence.request.output_tokens - sequence.first_seen
        if not sequence.first_seen:
            self._fresh.append(sequence)
        self._made += 1
        ends = self._step_number + sequence.left
        heapq.heappush(self._decoding, (ends, self._made, sequence))
        self._context += sequence.done

    def _advance(self, steps: int) -> None:
        """Give every decoding sequence so many tokens; those that have all of theirs end."""
        decoding = self._decoding
        self.steps += steps
        self._step_number += steps
        self._context += steps * len(decoding)
        for sequence in self._fresh:
            self._see_first(sequence)
        self._fresh.clear()
        while decoding and decoding[0][0] <= self._step_number:
            sequence = heapq.heappop(decoding)[2]
            self._context -= sequence.done + sequence.left
            self._end(sequence)

    def _see_first(self, sequence: Sequence) -> None:
        sequence.first_seen = True
        sequence.request.first_s = self._clock.now_s
        sequence.request.first()

    def _schedule(self) -> list[tuple[Sequence, int]]:
        """Return the prompts that a step computes a part of, and up to where.

        As in vLLM, those that wait are let in, in order, as long as the step has room for tokens
        and the cache for blocks, and what a step will compute counts as there for the next.
        """
        if not self._waiting and not self._prefilling and not self._ready:
            return []
        self._prefilling.extend(self._ready)
        self._ready.clear()
        budget = self.hardware.batch_tokens - len(self._decoding)
        chunks: list[tuple[Sequence, int]] = []
        for sequence in self._prefilling:
            budget = self._chunk(sequence, budget, chunks)
        running = len(self._prefilling) + len(self._decoding) + self._loading
        while self._waiting and running < self.hardware.sequences and budget > 0:
            placed = self.room(self._waiting[0])
            if placed is None:
                break
            placed.request.local_tokens = placed.done
            self._waiting.popleft()
            running += 1
            if not self._begin_load(placed):
                self._prefilling.append(placed)
                budget = self._chunk(placed, budget, chunks)
        return chunks

    def _chunk(self, sequence: Sequence, budget: int, chunks: list[tuple[Sequence, int]]) -> int:
        """Add a prompt's next part to a step; return the tokens that the step has left."""
        end = min(sequence.request.prompt_tokens, sequence.done + budget)
        if end <= sequence.done:
            return budget
        chunks.append((sequence, end))
        self.name(sequence, min(len(sequence.request.keys), end // self._block))
        return budget - (end - sequence.done)

    def _begin_load(self, sequence: Sequence) -> bool:
        if self._load is None:
            return False
        began = self._load(self, sequence, lambda blocks: self._loaded(sequence, blocks))
        self._loading += began
        return began

    def _loaded(self, sequence: Sequence, blocks: int) -> None:
        self._loading -= 1
        request = sequence.request
        sequence.done = max(sequence.done, min(blocks * self._block, request.prompt_tokens - 1))
        request.pool_tokens = sequence.done - request.local_tokens
        self.name(sequence, blocks)
        self._ready.append(sequence)
        self._wake()

    def _end_mixed(self, chunks: list[tuple[Sequence, int]]) -> None:
        self._advance(1)
        for sequence, end in chunks:
            self.computed_tokens += end - sequence.done
            sequence.done = end
        over = [each for each, _ in chunks if each.done >= each.request.prompt_tokens]
        if over:
            self._prefilling = [
                each for each in self._prefilling if each.done < each.request.prompt_tokens
            ]
            for sequence in over:
                self._end_prefill(sequence)
        self._step()

    def _end_prefill(self, sequence: Sequence) -> None:
        self._prefilled(self, sequence)
        if not self._decodes:
            return
        self._see_first(sequence)
        if sequence.request.output_tokens <= 1:
            self._end(sequence)
        else:
            self._start_decoding(sequence)

    def _end(self, sequence: Sequence) -> None:
        self.cache.give(sequence.request, sequence.nameless)
        sequence.request.end_s = self._clock.now_s
        sequence.request.then()
