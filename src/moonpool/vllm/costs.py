"""Load a hit or compute it again? By the speeds of both as this engine has seen them; sans I/O.

In doubt a hit is loaded: that leaves the processor to other requests. It is computed again only if
loads of its size have lately taken several times as long as computing it would, and long enough to
matter; now and then one is loaded all the same, to see whether that has changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

MARGIN = 3.0
"""A load may take this many times as long as computing."""
MATTERS_S = 0.25
"""Loads that are shorter are not worth a thought."""
SAMPLES_MIN = 8
STEP_TOKENS_MIN = 64
"""Steps of fewer tokens say little about the speed of a prefill."""
TRY_AGAIN = 16
"""Of so many hits that are not worth loading, one is loaded."""
_WEIGHT = 0.2


@dataclass(slots=True)
class _Mean:
    """An exponential mean of the last samples."""

    value: float = 0.0
    samples: int = 0

    def add(self, sample: float) -> None:
        weight = max(_WEIGHT, 1 / (self.samples + 1))
        self.value += weight * (sample - self.value)
        self.samples += 1


class Costs:
    """What loads and prefills take. All times are seconds."""

    def __init__(self) -> None:
        self._token_s = _Mean()
        self._load_s: dict[int, _Mean] = {}
        self._step: tuple[float, Mapping[str, int]] = 0.0, {}
        self._refused = 0

    def step(self, now: float, scheduled: Mapping[str, int]) -> None:
        """A step begins with so many tokens of each request.

        The one before is measured if a request goes on: then the engine was not idle between.
        """
        before, last = self._step
        self._step = now, dict(scheduled)
        tokens = sum(last.values())
        if tokens >= STEP_TOKENS_MIN and any(name in scheduled for name in last):
            self._token_s.add(max(0.0, now - before) / tokens)

    def loaded(self, tokens: int, seconds: float) -> None:
        """A load of so many tokens has ended well."""
        self._load_s.setdefault(tokens.bit_length(), _Mean()).add(seconds)

    def compute_s(self, tokens: int) -> float | None:
        """Return how long computing so many tokens would take; None while that is not known."""
        return self._token_s.value * tokens if self._token_s.samples >= SAMPLES_MIN else None

    def worth_loading(self, tokens: int) -> bool:
        """Tell whether to load so many tokens; each call is about another hit."""
        load = self._load_s.get(tokens.bit_length())
        if load is None or min(load.samples, self._token_s.samples) < SAMPLES_MIN:
            return True
        if load.value <= max(MATTERS_S, MARGIN * self._token_s.value * tokens):
            return True
        self._refused += 1
        return self._refused % TRY_AGAIN == 0
