"""Shapes of models, from the ``config.json`` that their makers publish, and what follows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

BYTES_A_VALUE = {"bf16": 2.0, "fp8": 1.0}


@dataclass(frozen=True, slots=True)
class Model:
    """A decoder. parameters: those that take part in computing a token; weights_gb: all of them as
    they are served. kv_values: values of KV that a layer keeps for a token; 2 x KV heads x size of
    a head, or the latent and its rotary part where attention is latent (MLA). query_width: heads x
    size of a head in the products with keys and values, their mean.
    """

    name: str
    layers: int
    kv_values: int
    query_width: int
    parameters: float
    weights_gb: float
    bits: int
    source: str

    def kv_bytes(self, dtype: str = "bf16") -> int:
        """Return the bytes of KV that one token takes, over all layers."""
        return round(self.layers * self.kv_values * BYTES_A_VALUE[dtype])

    def flops(self, begin: int, end: int) -> float:
        """Return the floating-point operations to compute a prompt from ``begin`` to ``end``.

        Two for each parameter, and for each pair of tokens four in each layer: the products with
        keys and with values. This is what makes long prompts dear.
        """
        return self._linear * (end - begin) + self._quadratic * (end * end - begin * begin)

    def flops_each(self, begins: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the same for many prompts."""
        first, last = begins.astype(np.float64), ends.astype(np.float64)
        return self._linear * (last - first) + self._quadratic * (last * last - first * first)

    @property
    def _linear(self) -> float:
        return 2.0 * self.parameters

    @property
    def _quadratic(self) -> float:
        return 2.0 * self.layers * self.query_width


_HUB = "huggingface.co/{}/blob/main/config.json"
MODELS = {
    each.name: each
    for each in (
        Model(
            *("llama-3.1-8b", 32, 2 * 8 * 128, 32 * 128, 8.03e9, 16.1, 16),
            _HUB.format("meta-llama/Llama-3.1-8B"),
        ),
        Model(
            *("llama-3.1-70b", 80, 2 * 8 * 128, 64 * 128, 70.6e9, 141.0, 16),
            _HUB.format("meta-llama/Llama-3.1-70B"),
        ),
        Model(
            *("qwen3-8b", 36, 2 * 8 * 128, 32 * 128, 8.19e9, 16.4, 16),
            _HUB.format("Qwen/Qwen3-8B"),
        ),
        Model(
            *("qwen3-32b", 64, 2 * 8 * 128, 64 * 128, 32.8e9, 65.5, 16),
            _HUB.format("Qwen/Qwen3-32B"),
        ),
        Model(
            *("qwen3-235b-a22b", 94, 2 * 4 * 128, 64 * 128, 22e9, 470.0, 16),
            _HUB.format("Qwen/Qwen3-235B-A22B"),
        ),
        # Latent attention: 512 + 64 values a token, whatever the number of heads. In prefill keys
        # are 128 + 64 and values 128 wide.
        Model(
            *("deepseek-v3", 61, 512 + 64, 128 * 160, 37e9, 671.0, 8),
            _HUB.format("deepseek-ai/DeepSeek-V3"),
        ),
        Model(
            *("kimi-k2.5", 61, 512 + 64, 64 * 160, 32e9, 595.0, 4),
            _HUB.format("moonshotai/Kimi-K2.5"),
        ),
    )
}
