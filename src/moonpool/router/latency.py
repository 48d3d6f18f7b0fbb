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
FLOOR = 0.02
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

    ``prior`` is what it believes before it has seen anything, and is drawn back to where answers
    say nothing of a cost.
    """

    def __init__(self, prior: Weights = PRIOR) -> None:
        self.weights = prior
        self.samples = 0
        self._prior = prior
        self._square = [[0.0] * SIZE for _ in range(SIZE)]
        self._right = [0.0] * SIZE

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
        self.weights = self._solve()

    def _solve(self) -> Weights:
        rows = []
        for place, prior in enumerate(self._prior):
            pull = PRIOR_STRENGTH / max(prior, 1e-6) ** 2
            row = [*self._square[place], self._right[place] + pull * prior]
            row[place] += pull
            rows.append(row)
        found = _gauss(rows)
        first, second, third, fourth = (
            max(value, FLOOR * prior) for value, prior in zip(found, self._prior, strict=True)
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
