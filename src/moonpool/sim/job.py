"""One request on its way through the simulated cluster."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class Job:
    """A request. ``keys`` name the full blocks of its prompt, each the prompt up to its end.

    local_tokens, pool_tokens: the prompt's head that the engine had, and what it loaded behind it;
    could_hit_tokens: what a cache that forgets nothing would have had. Times are the clock's;
    first_s and end_s are -1 while they have not come.
    """

    session: str
    keys: list[int]
    prompt_tokens: int
    output_tokens: int
    arrived_s: float = 0.0
    could_hit_tokens: int = 0
    engine: int = -1
    local_tokens: int = 0
    pool_tokens: int = 0
    first_s: float = -1.0
    end_s: float = -1.0
    on_first: list[Callable[[], None]] = field(default_factory=list, repr=False)
    on_end: list[Callable[[], None]] = field(default_factory=list, repr=False)

    @property
    def ttft_s(self) -> float:
        """Seconds from arrival to the first token."""
        return self.first_s - self.arrived_s
