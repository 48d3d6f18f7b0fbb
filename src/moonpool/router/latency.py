"""How long an instance takes to its first token: learned from the answers it has given."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

FORGET = 0.975
PRIOR_STRENGTH = 0.005
# A weight never falls below this share of its prior, so that no cost is ever taken for a gain.
FLOOR = 0.001
# An instance's own speed counts as much as that of all after so many answers; so many others'
# answers after its last one it counts half.
FEW = 12
STALE = 256
FOLLOW = 0.05
FACTOR_MAX = 100.0
SLOWEST_S = 600.0


class Weights(NamedTuple):
    """Seconds for any request, for 1,000 tokens to prefill, for 1,000 to load from the pool's part
    on its own host, for ten requests that run beside it, for 10^9 pairs of a token to prefill and
    one before it, for each second of work that waits before it, and for 1,000 tokens to load from
    other hosts."""

    base: float
    prefill: float
    load: float
    running: float
    attention: float
    wait: float
    far: float


# A guess that the first few answers correct.
PRIOR = Weights(0.03, 0.2, 0.02, 0.02, 0.5, 1.0, 0.03)
SIZE = len(PRIOR)


@dataclass(frozen=True, slots=True)
class Work:
    """What stands before a first token: tokens to prefill, tokens to load from the pool, requests
    that run at the same time, tokens of the prompt before those to prefill, the seconds of work
    that came first, and of the tokens to load those that lie on other hosts."""

    prefill_tokens: float = 0.0
    load_tokens: float = 0.0
    running: int = 0
    context_tokens: float = 0.0
    wait_s: float = 0.0
    far_tokens: float = 0.0

    def features(self) -> Weights:
        """Return what the weights are multiplied with."""
        pairs = self.prefill_tokens * (self.context_tokens + self.prefill_tokens / 2)
        return Weights(
            1.0,
            self.prefill_tokens / 1000,
            (self.load_tokens - self.far_tokens) / 1000,
            self.running / 10,
            pairs / 1e9,
            self.wait_s,
            self.far_tokens / 1000,
        )


class LatencyModel:
    """A linear model of the time to first token, fitted to relative errors, forgetting slowly.

    fleet: what was learned of all instances. One with a fleet is taken for as many times slower
    than it as its own answers say; one that has given few, or none lately, for average: an
    instance that is never asked must not be avoided for what was once believed of it.
    """

    def __init__(self, fleet: LatencyModel | None = None) -> None:
        self.samples = 0
        self._fleet = fleet
        self._seen = 0
        self._slower = 0.0
        self._own = PRIOR
        self._square = [[0.0] * SIZE for _ in range(SIZE)]
        self._right = [0.0] * SIZE

    @property
    def factor(self) -> float:
        """How many times slower than the fleet."""
        fleet = self._fleet
        if fleet is None:
            return 1.0
        trust = self.samples / (self.samples + FEW)
        trust *= STALE / (STALE + fleet.samples - self._seen)
        return math.exp(trust * self._slower)

    @property
    def weights(self) -> Weights:
        """What a first token takes, by its parts."""
        if self._fleet is None:
            return self._own
        factor = self.factor
        return Weights(*(factor * weight for weight in self._fleet.weights))

    def price(self, work: Work) -> tuple[float, float]:
        """Return the seconds to expect, and those of them in which the request's own prompt keeps
        the instance computing."""
        weights = self._own if self._fleet is None else self._fleet.weights
        base, prefill, load, running, attention, wait, far = weights
        tokens = work.prefill_tokens
        pairs = tokens * (work.context_tokens + tokens / 2)
        own = prefill * tokens / 1e3 + attention * pairs / 1e9
        loads = load * (work.load_tokens - work.far_tokens) / 1e3 + far * work.far_tokens / 1e3
        total = base + own + loads + running * work.running / 10 + wait * work.wait_s
        factor = self.factor
        return factor * total, factor * own

    def predict(self, work: Work) -> float:
        """Return the seconds to expect."""
        return self.price(work)[0]

    def observe(self, work: Work, seconds: float) -> None:
        """Learn from a first token that took ``seconds``; nonsense is left out."""
        if not 0.0 <= seconds <= SLOWEST_S:
            return
        self.samples += 1
        if self._fleet is None:
            self._fit(work.features(), seconds, self.predict(work))
            return
        self._seen = self._fleet.samples
        ratio = max(seconds, 0.001) / max(self._fleet.predict(work), 0.001)
        error = math.log(min(FACTOR_MAX, max(1 / FACTOR_MAX, ratio))) - self._slower
        self._slower += max(FOLLOW, 1 / self.samples) * error

    def _fit(self, features: Weights, seconds: float, predicted_s: float) -> None:
        # An error of 10 % should weigh the same for a short prompt as for a long one.
        importance = 1.0 / (0.02 + max(seconds, predicted_s)) ** 2
        for row in range(SIZE):
            scaled = features[row] * importance
            line = self._square[row]
            for column in range(SIZE):
                line[column] = FORGET * line[column] + scaled * features[column]
            self._right[row] = FORGET * self._right[row] + scaled * seconds
        self._own = self._solve()

    def _solve(self) -> Weights:
        """Return the best weights of which none is below its floor."""
        fixed: dict[int, float] = {}
        while True:
            free = [place for place in range(SIZE) if place not in fixed]
            found = _gauss([self._row(place, free, fixed) for place in free])
            low = [
                place
                for place, value in zip(free, found, strict=True)
                if value < FLOOR * PRIOR[place]
            ]
            if not low:
                values = {**fixed, **dict(zip(free, found, strict=True))}
                return Weights(*(values[place] for place in range(SIZE)))
            fixed.update((place, FLOOR * PRIOR[place]) for place in low)

    def _row(self, place: int, free: list[int], fixed: dict[int, float]) -> list[float]:
        pull = PRIOR_STRENGTH / PRIOR[place] ** 2
        line = self._square[place]
        row = [line[column] + (pull if column == place else 0.0) for column in free]
        right = self._right[place] + pull * PRIOR[place]
        return [*row, right - sum(line[column] * value for column, value in fixed.items())]


def _gauss(rows: list[list[float]]) -> list[float]:
    """Solve a small positive definite system, given as rows with the right side last."""
    size = len(rows)
    for pivot in range(size):
        head = rows[pivot]
        for row in rows[pivot + 1 :]:
            factor = row[pivot] / head[pivot]
            for column in range(pivot, size + 1):
                row[column] -= factor * head[column]
    found = [0.0] * size
    for place in reversed(range(size)):
        row = rows[place]
        rest = sum(row[column] * found[column] for column in range(place + 1, size))
        found[place] = (row[size] - rest) / row[place]
    return found
