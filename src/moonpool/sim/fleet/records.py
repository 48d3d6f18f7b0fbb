"""What became of requests, in columns: a fleet has millions of them."""

from __future__ import annotations

from array import array
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from moonpool.sim.fleet.request import Request
from moonpool.workload.spread import Spread, spread_of


class Records:
    """A row for each request whose answer has ended."""

    def __init__(self) -> None:
        self._floats = {name: array("d") for name in ("arrived_s", "first_s", "end_s")}
        self._ints = {
            name: array("q")
            for name in (
                "prompt_tokens",
                "output_tokens",
                "local_tokens",
                "pool_tokens",
                "could_hit_tokens",
                "turn",
                "engine",
            )
        }

    def __len__(self) -> int:
        return len(self._ints["turn"])

    def add(self, request: Request) -> None:
        """Note a request."""
        for name, floats in self._floats.items():
            floats.append(getattr(request, name))
        for name, ints in self._ints.items():
            ints.append(getattr(request, name))

    def column(self, name: str) -> NDArray[np.float64]:
        """Return a column, one value a request, in the order in which they ended."""
        found = self._floats.get(name)
        return np.asarray(self._ints[name] if found is None else found, dtype=np.float64)

    def summary(
        self, begin_s: float = 0.0, end_s: float = np.inf, *, ended_only: bool = False
    ) -> Summary:
        """Return the figures of the requests that arrived in a window, and of the answers that
        ended in it. ended_only: hits and times too are of those that ended in it, for runs that
        were cut off there."""
        arrived, first, end = (self.column(n) for n in ("arrived_s", "first_s", "end_s"))
        inside = (arrived >= begin_s) & (arrived < end_s)
        ended = (end >= begin_s) & (end < end_s)
        if ended_only:
            inside = ended
        length_s = min(end_s, float(end.max(initial=0.0))) - begin_s
        prompt = self.column("prompt_tokens")[inside]
        tokens = float(prompt.sum()) or 1.0
        output = self.column("output_tokens")

        def share(name: str) -> float:
            return float(self.column(name)[inside].sum()) / tokens

        return Summary(
            requests=int(inside.sum()),
            seconds=length_s,
            requests_s=float(ended.sum()) / length_s if length_s > 0 else 0.0,
            output_tokens_s=float(output[ended].sum()) / length_s if length_s > 0 else 0.0,
            input_tokens=int(tokens),
            hit_rate=share("local_tokens") + share("pool_tokens"),
            local_hit_rate=share("local_tokens"),
            pool_hit_rate=share("pool_tokens"),
            ideal_hit_rate=share("could_hit_tokens"),
            ttft_s=spread_of((first - arrived)[inside].tolist()),
            e2e_s=spread_of((end - arrived)[inside].tolist()),
            itl_s=float(
                np.mean((end - first)[inside] / np.maximum(1.0, output[inside] - 1))
                if inside.any()
                else 0.0
            ),
        )


@dataclass(frozen=True, slots=True)
class Summary:
    """Figures of a window. Rates are a second, hit rates shares of the input tokens."""

    requests: int
    seconds: float
    requests_s: float
    output_tokens_s: float
    input_tokens: int
    hit_rate: float
    local_hit_rate: float
    pool_hit_rate: float
    ideal_hit_rate: float
    ttft_s: Spread
    e2e_s: Spread
    itl_s: float
