"""One request on its way through a simulated fleet."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

NOTHING: Callable[[], None] = lambda: None  # noqa: E731


@dataclass(slots=True, eq=False)
class Request:
    """A request. ``keys`` name the full blocks of its prompt, each the prompt up to its end.

    runs: the same as runs of blocks, where that is known: the number of a run, and how many of its
    blocks.

    could_hit_tokens: what a cache that forgets nothing would have had. local_tokens, pool_tokens:
    what the engine that computed the prompt had of it, and what it loaded behind that. engine: its
    number, given before where it is not the router's choice. Times are the clock's; -1 while they
    have not come. then: called when the answer has ended.
    """

    session: str
    turn: int
    keys: list[int]
    prompt_tokens: int
    output_tokens: int
    arrived_s: float = 0.0
    runs: tuple[tuple[int, int], ...] = ()
    could_hit_tokens: int = 0
    local_tokens: int = 0
    pool_tokens: int = 0
    engine: int = -1
    decoder: int = -1
    first_s: float = -1.0
    end_s: float = -1.0
    first: Callable[[], None] = field(default=NOTHING, repr=False)
    then: Callable[[], None] = field(default=NOTHING, repr=False)

    @property
    def hit_tokens(self) -> int:
        """Tokens of the prompt that were not computed."""
        return self.local_tokens + self.pool_tokens

    @property
    def ttft_s(self) -> float:
        """Seconds from arrival to the first token."""
        return self.first_s - self.arrived_s

    @property
    def e2e_s(self) -> float:
        """Seconds from arrival to the last token."""
        return self.end_s - self.arrived_s
