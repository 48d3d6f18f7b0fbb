"""What became of one request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

UNFINISHED = "unfinished"
"""The run was ended before its answer: neither answered nor failed."""


@dataclass(slots=True)
class Record:
    """One request. Times are seconds since the run began; ``error`` is a kind, "" where answered.

    intended_s: when it was to be sent; all latencies count from there, so that a sender that is
    late does not hide what a user would have waited. ``token_s``: when each token came; those of
    one event came together. cached_tokens: None where the engine does not say.
    """

    number: int
    session: str
    turn: int
    prompt_tokens: int
    wanted_tokens: int
    intended_s: float
    endpoint: int = 0
    sent_s: float = 0.0
    ended_s: float = 0.0
    output_tokens: int = 0
    cached_tokens: int | None = None
    ideal_tokens: int = 0
    error: str = ""
    reason: str = ""
    token_s: list[float] = field(default_factory=list)

    @property
    def answered(self) -> bool:
        """Whether there is a whole answer."""
        return not self.error

    @property
    def ttft_s(self) -> float:
        """From the intended time to the first token."""
        return self.token_s[0] - self.intended_s

    @property
    def e2e_s(self) -> float:
        """From the intended time to the end of the answer."""
        return self.ended_s - self.intended_s

    @property
    def late_s(self) -> float:
        """How much later it was sent than intended."""
        return self.sent_s - self.intended_s

    @property
    def tpot_s(self) -> float | None:
        """Mean time for a token after the first; None for an answer of one."""
        if self.output_tokens < 2 or not self.token_s:
            return None
        return (self.token_s[-1] - self.token_s[0]) / (self.output_tokens - 1)

    @property
    def gaps_s(self) -> Sequence[float]:
        """Times between tokens."""
        return [after - before for before, after in pairwise(self.token_s)]
