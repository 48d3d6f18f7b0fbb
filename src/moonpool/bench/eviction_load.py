"""Traces as the pool sees them: requests as lists of numbers of objects, and the objects' keys."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from moonpool.bench.tiers import NAMESPACE, steps_of


@dataclass(frozen=True, slots=True)
class Ask:
    """A request: its prompt's tokens, and its objects front first (only full ones are named).
    ``last``: the ``conversation`` ends with it; where the trace knows none, it is empty."""

    input_tokens: int
    objects: list[int]
    conversation: str = ""
    last: bool = False


@dataclass(frozen=True, slots=True)
class Load:
    """A trace's requests in order of time; ``tokens_each`` is an object's."""

    name: str
    asks: list[Ask]
    keys: list[bytes]
    tokens_each: int

    @property
    def accesses(self) -> int:
        """Uses of objects by all requests."""
        return sum(len(ask.objects) for ask in self.asks)

    @property
    def knows_conversations(self) -> bool:
        """Whether the trace says which requests belong together."""
        return any(ask.conversation for ask in self.asks)

    @property
    def input_tokens(self) -> int:
        """Tokens of all prompts."""
        return sum(ask.input_tokens for ask in self.asks)


def read_load(path: Path) -> Load:
    """Read a trace; raise TraceError."""
    head = bytes((len(NAMESPACE),)) + NAMESPACE
    numbers: dict[bytes, int] = {}
    steps = steps_of(path)
    lasts = {step.conversation: at for at, step in enumerate(steps) if step.conversation}
    asks: list[Ask] = []
    tokens_each = 1
    for at, step in enumerate(steps):
        objects = [numbers.setdefault(digest, len(numbers)) for digest in step.digests]
        last = lasts.get(step.conversation) == at
        asks.append(Ask(step.input_tokens, objects, step.conversation, last))
        tokens_each = step.tokens_each
    return Load(path.name, asks, [head + digest for digest in numbers], tokens_each)
