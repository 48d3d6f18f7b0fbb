"""What computing and loading a prefix take on a given machine."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from moonpool.planner.machines import Gpu, Link
from moonpool.planner.models import Model

STEP_S = 0.02
"""Of any request that computes something: launching, sampling, answering."""
LOAD_S = 0.005
"""Of any load: asking the master, starting transfers."""
PREFIX_MAX = 1 << 22

Counts = NDArray[np.int64]
Seconds = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Engine:
    """One serving instance: ``gpus`` of one kind with a model, and its way to the pool."""

    model: Model
    gpu: Gpu
    gpus: int
    link: Link
    dtype: str = "bf16"

    @property
    def kv_bytes(self) -> int:
        """Bytes of KV a token."""
        return self.model.kv_bytes(self.dtype)

    @property
    def hbm_tokens(self) -> int:
        """Tokens of KV that fit beside the weights in 90 % of the GPUs' memory; 0 if none do."""
        free = 0.9 * self.gpu.hbm_gb * self.gpus - self.model.weights_gb
        return max(0, int(free * 1e9 / self.kv_bytes))

    def prefill_s(self, begin: int, end: int) -> float:
        """Return the seconds to compute a prompt's tokens from ``begin`` to ``end``, alone."""
        return STEP_S + self.model.flops(begin, end) / self._flops_s

    def prefill_each(self, begins: Counts, ends: Counts) -> Seconds:
        """Return the same for many prompts."""
        return STEP_S + self.model.flops_each(begins, ends) / self._flops_s

    @property
    def _flops_s(self) -> float:
        return self.gpu.flops_s(self.model.bits) * self.gpus

    def host_gb_s(self) -> float:
        """Return how fast KV comes from the pool's part on the engine's own host."""
        return self.gpu.host_gb_s * self.gpus

    def load_s(self, tokens: float, gb_s: float) -> float:
        """Return the seconds to load the KV of so many tokens at so many 10^9 bytes a second."""
        return LOAD_S + tokens * self.kv_bytes / (gb_s * 1e9) if tokens else 0.0

    def load_each(self, tokens: Counts, gb_s: float) -> Seconds:
        """Return the same for many loads; none takes no time."""
        found: Seconds = (tokens > 0) * LOAD_S + tokens * (self.kv_bytes / (gb_s * 1e9))
        return found

    def crossover(self, gb_s: float) -> int | None:
        """Return the tokens from which on loading a prefix is faster than computing it; None if
        it never is."""

        def saves(tokens: int) -> bool:
            return self.load_s(tokens, gb_s) < self.prefill_s(0, tokens) - STEP_S

        if not saves(PREFIX_MAX):
            return None
        low, high = 1, PREFIX_MAX
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if saves(middle) else (middle + 1, high)
        return low
