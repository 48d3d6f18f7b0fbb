"""How long an instance takes to its first token: learned from the answers it has given."""

from __future__ import annotations

from dataclasses import dataclass

Weights = tuple[float, float, float, float]
# Seconds: for any request, for 1,000 tokens to prefill, for 1,000 tokens to load from the pool,
# for ten requests that run beside it. A guess that the first few answers correct.
PRIOR: Weights = (0.03, 0.2, 0.02, 0.02)
FORGET = 0.97
PRIOR_STRENGTH = 0.005
# A weight never falls below this share of its prior, so that no cost is ever taken for a gain.
FLOOR = 0.001
# So many answers, or so many others' since the last, and an instance counts half, the fleet half.
FEW = 4
STALE = 256
SLOWEST_S = 600.0
SIZE = len(PRIOR)


@dataclass(frozen=True, slots=True)
class Work:
    """What stands before a first token: tokens to prefill (others' included), tokens to load from
    the pool, requests that run at the same time."""

    prefill_tokens: float = 0.0
    load_tokens: float = 0.0
    running: int = 0

    def features(self) -> Weights:
        """Return what the weights are multiplied with."""
        return 1.0, self.prefill_tokens / 1000, self.load_tokens / 1000, self.running / 10


class LatencyModel:
    """A linear model of the time to first token, fitted to relative errors, forgetting slowly.

    fleet: what was learned of all instances. It is what a new instance is taken for, and what one
    is drawn back to that has seen little, or nothing lately: an instance that is never asked must
    not be avoided for what was once believed of it.
    """

    def __init__(self, fleet: LatencyModel | None = None) -> None:
        self.samples = 0
        self._fleet = fleet
        self._seen = 0
        self._own = PRIOR
        self._square = [[0.0] * SIZE for _ in range(SIZE)]
        self._right = [0.0] * SIZE

    @property
    def weights(self) -> Weights:
        """Seconds for any request, for 1,000 tokens to prefill and to load, for ten running."""
        fleet = self._fleet
        if fleet is None:
            return self._own
        own = self.samples / (self.samples + FEW)
        own *= STALE / (STALE + fleet.samples - self._seen)
        a, b, c, d = self._own
        e, f, g, h = fleet.weights
        rest = 1.0 - own
        return own * a + rest * e, own * b + rest * f, own * c + rest * g, own * d + rest * h

    def predict(self, work: Work) -> float:
        """Return the seconds to expect."""
        base, prefill, load, running = self.weights
        return (
            base
            + prefill * work.prefill_tokens / 1000
            + load * work.load_tokens / 1000
            + running * work.running / 10
        )

    def observe(self, work: Work, seconds: float) -> None:
        """Learn from a first token that took ``seconds``; nonsense is left out."""
        if not 0.0 <= seconds <= SLOWEST_S:
            return
        self.samples += 1
        features = work.features()
        # An error of 10 % should weigh the same for a short prompt as for a long one.
        importance = 1.0 / (0.02 + max(seconds, self.predict(work))) ** 2
        for row in range(SIZE):
            scaled = features[row] * importance
            line = self._square[row]
            for column in range(SIZE):
                line[column] = FORGET * line[column] + scaled * features[column]
            self._right[row] = FORGET * self._right[row] + scaled * seconds
        self._own = self._solve()
        self._seen = self._fleet.samples if self._fleet is not None else 0

    def _solve(self) -> Weights:
        rows = []
        priors = self._fleet.weights if self._fleet is not None else PRIOR
        for place, (prior, scale) in enumerate(zip(priors, PRIOR, strict=True)):
            pull = PRIOR_STRENGTH / scale**2
            row = [*self._square[place], self._right[place] + pull * prior]
            row[place] += pull
            rows.append(row)
        found = _gauss(rows)
        first, second, third, fourth = (
            max(value, FLOOR * prior) for value, prior in zip(found, PRIOR, strict=True)
        )
        return first, second, third, fourth


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
