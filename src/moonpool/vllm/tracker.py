"""What the scheduler side knows of one request, and which of its blocks are worth saving."""

from __future__ import annotations

from typing import Any

import numpy as np

from moonpool.vllm import objects
from moonpool.vllm.lookups import Lookup
from moonpool.vllm.objects import I32
from moonpool.vllm.params import NONE, Wish

RETRIES_MAX = 3
NEVER = 1 << 62


class Tracker:
    """One request from its arrival to its end. Positions are counted in blocks.

    ``request`` is vLLM's; read are request_id, block_hashes, num_tokens, num_prompt_tokens,
    num_computed_tokens, num_preemptions, skip_reading_prefix_cache.
    """

    __slots__ = (
        "cap",
        "claim",
        "generation",
        "handoff",
        "judged",
        "local_tokens",
        "lookup",
        "next_at",
        "offered_blocks",
        "request",
        "retries",
        "saved",
        "stale",
        "tail_end",
        "vouched",
        "waits",
        "wish",
    )

    def __init__(self, request: Any, wish: Wish = NONE) -> None:
        """Nothing is known yet but what its client asked for."""
        self.request, self.wish = request, wish
        self.handoff = 0
        """Number of the handoff in which other engines wait for it; 0 if there is none."""
        self.claim: int | None = None
        """Number of the claim on what is computed of it; 0 if there is none."""
        self.waits = False
        """Whether what was offered last is still being computed by another engine."""
        self.lookup: Lookup | None = None
        self.cap: int | None = None
        """Blocks proven good by a failed load: hits of this request go no further."""
        self.judged: tuple[int, bool] = 0, True
        """A hit of so many tokens, and whether it is worth loading."""
        self.local_tokens = 0
        self.offered_blocks = 0
        self.generation = 0
        """Of the load in progress; 0 when there is none."""
        self.saved = 0
        """Blocks, up to an object boundary, that are saved or being saved."""
        self.tail_end = 0
        """End of the last tail object that is saved or being saved."""
        self.next_at = 0
        """Computed tokens at which there may be something to save."""
        self.retries = 0
        self.vouched: int | None = 0
        """Between admission and the first step: tokens that the engine had or we loaded. What
        another connector brings beyond them may still turn out to have failed in that step."""
        self.stale = False
        """Whether its KV may come from before a reset: nothing of it is saved any more."""

    def found(self, count: int, stride: int) -> None:
        """Note that the pool holds the first ``count`` blocks."""
        self.saved = max(self.saved, objects.floor(count, stride))
        if count % stride:
            self.tail_end = max(self.tail_end, count)

    def lost(self, position: int, stride: int) -> None:
        """Note that the pool does not hold the object at this position (any more)."""
        self.saved = min(self.saved, objects.floor(position, stride))
        if self.tail_end > position:
            self.tail_end = 0
        self.next_at = 0

    @property
    def in_doubt(self) -> bool:
        """Whether what another connector brings may still turn out to have failed."""
        return self.vouched is not None and self.request.num_computed_tokens > self.vouched

    def reset(self) -> None:
        """Forget what the pool holds: it is another namespace now."""
        self.lookup, self.stale, self.offered_blocks = None, True, 0


def unsaved(
    tracker: Tracker, computed_tokens: int, block_size: int, stride: int, *, decode: bool, end: bool
) -> I32:
    """Return the ends of the objects to save once ``computed_tokens`` are computed.

    Complete objects always; a tail when the prompt is complete, and another at the ``end``.
    With ``decode`` False what was generated is left out.
    """
    request = tracker.request
    tokens = computed_tokens if decode else min(computed_tokens, request.num_prompt_tokens)
    blocks = min(tokens // block_size, len(request.block_hashes))
    complete = objects.floor(blocks, stride)
    ends = objects.ends_between(tracker.saved, complete, stride)
    prompt_blocks = min(request.num_prompt_tokens // block_size, len(request.block_hashes))
    tail = blocks if end else min(blocks, prompt_blocks)
    prompt_done = computed_tokens >= request.num_prompt_tokens
    wanted = tail % stride and tail > max(tracker.tail_end, tracker.saved)
    # A prompt's tail that a complete object covers already adds nothing.
    if wanted and prompt_done and tail > complete:
        ends = np.append(ends, np.int32(tail))
    return ends


def next_save_at(tracker: Tracker, block_size: int, stride: int, *, decode: bool) -> int:
    """Return the computed tokens at which ``unsaved`` may return something again."""
    request = tracker.request
    boundary = (tracker.saved + stride) * block_size
    prompt = request.num_prompt_tokens
    if not decode and boundary > prompt:
        boundary = NEVER
    tail = prompt // block_size
    if tail % stride and tail > max(tracker.tail_end, tracker.saved):
        return int(min(boundary, prompt))
    return int(boundary)
