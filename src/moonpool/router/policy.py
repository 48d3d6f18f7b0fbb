"""Which instance gets a request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(slots=True)
class Instance:
    """One engine behind the front.

    ``down_until`` is the monotonic time before which it is passed over, after ``failures``
    connections in a row that could not be made.
    """

    url: str
    in_flight: int = 0
    failures: int = 0
    down_until: float = 0.0

    def is_up(self, now: float) -> bool:
        """Return whether the instance should be asked at ``now``."""
        return now >= self.down_until


@dataclass(frozen=True, slots=True)
class RoutedRequest:
    """What a policy may look at. ``arrived_s`` is a time of the front's clock."""

    path: str
    body: bytes = field(repr=False)
    arrived_s: float


class Policy(Protocol):
    """Chooses among instances that are up; called once for each attempt."""

    def choose(self, request: RoutedRequest, candidates: Sequence[Instance]) -> Instance:
        """Return one of the candidates; there is always at least one."""


class RoundRobin:
    """Each request to the next instance, whatever it asks."""

    def __init__(self) -> None:
        self._turn = 0

    def choose(self, request: RoutedRequest, candidates: Sequence[Instance]) -> Instance:
        """Return the candidate whose turn it is."""
        chosen = candidates[self._turn % len(candidates)]
        self._turn += 1
        return chosen
