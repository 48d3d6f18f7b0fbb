"""How fast a simulated engine is. Rates are parameters; the defaults were fitted to measurements.

``H200_8B``: one H200, vLLM 0.24, Llama-3.1-8B's shape in bf16 (128 KiB of KV a token), eager.
Prefill of 8K, 32K, 64K, 80K and 120K tokens took 0.21, 1.18, 3.23, 4.58 and 8.97 s alone: the two
prefill rates give 0.22, 1.20, 3.26, 4.61 and 8.93 s. A prompt held in HBM with 512 new tokens took
0.048 s at 32K and 0.128 s at 120K, with its KV in the host's memory 0.147 s and 0.493 s: loading
is 43 GB/s. The decode step is from a replay of agents at 32 output tokens; reading KV is bound by
the memory's 4.8 TB/s, of which two thirds are had.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Hardware:
    """Rates of an engine and of its ways to the pool.

    prefill_s, attention_s: for a token, and for each token it looks back on, times two. step_s:
    any step; launch_s: what a step takes at least, since a processor launches it while the one
    before computes; weights_s: to read all weights, beside which a prompt's linear part is
    computed; sequence_s: each sequence that decodes; kv_read_s: each token of its context in a
    decode step. overhead_s: a request outside the engine's steps; tokenise_s: each of its tokens
    there. contention: by what share a step is slower for each other engine at work on the host's
    cores. hbm_tokens: room for KV. local_gb_s: each engine's way to its own host's pool;
    network_gb_s: each host's way to the others, 10^9 bytes a second.
    """

    prefill_s: float = 2.4e-5
    attention_s: float = 4.2e-10
    step_s: float = 0.015
    launch_s: float = 0.0
    weights_s: float = 0.0
    sequence_s: float = 0.0
    kv_read_s: float = 4.1e-8
    overhead_s: float = 0.02
    tokenise_s: float = 0.0
    hbm_tokens: int = 850_000
    kv_bytes: int = 131_072
    batch_tokens: int = 8192
    contention: float = 0.0
    sequences: int = 256
    context_tokens: int = 262_144
    local_gb_s: float = 43.0
    network_gb_s: float = 12.0
    load_latency_s: float = 0.004

    def prefill(self, begin: int, end: int) -> float:
        """Return the seconds to compute a prompt's tokens from ``begin`` to ``end``."""
        return self.prefill_s * (end - begin) + self.attention_s * (end**2 - begin**2)

    def chunks(self, parts: Sequence[tuple[int, int]]) -> float:
        """Return what parts of prompts add to the step that computes them; weights are read."""
        linear = attention = 0
        for begin, end in parts:
            linear += end - begin
            attention += end * end - begin * begin
        return max(self.weights_s, self.prefill_s * linear) + self.attention_s * attention

    def faster(self, factor: float) -> Hardware:
        """Return an engine that computes ``factor`` times as fast."""
        return replace(
            self,
            prefill_s=self.prefill_s / factor,
            attention_s=self.attention_s / factor,
            step_s=self.step_s / factor,
            launch_s=self.launch_s / factor,
            weights_s=self.weights_s / factor,
            sequence_s=self.sequence_s / factor,
            kv_read_s=self.kv_read_s / factor,
        )


H200_8B = Hardware()
