"""What is fuzzed: a target takes one input after the other and says what became of each."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod

REFUSED, TAKEN = "refused", "taken"
"""Refused: a typed error, or a miss. Taken: as if it were good, which it may even be."""


class WrongError(Exception):
    """A property does not hold: the text says which."""


class Target(ABC):
    """A part of moonpool that reads what others have written.

    ``share``: of all inputs. ``episode``: after so many inputs it begins anew, so that a finding
    can be had again from its episode's seed.
    """

    name = ""
    share = 1.0
    episode = 200

    def begin(self) -> None:  # noqa: B027 - most need nothing
        """Make what an episode needs."""

    @abstractmethod
    def take(self, chance: random.Random) -> str:
        """Make an input and hand it in; return REFUSED or TAKEN. What else is raised is found."""

    def end(self) -> None:  # noqa: B027
        """Check that all still works, and give back what ``begin`` made. Raises WrongError."""

    def close(self) -> None:  # noqa: B027
        """Give back what all episodes share."""


def require(holds: bool, text: str) -> None:
    """Raise WrongError unless something holds."""
    if not holds:
        raise WrongError(text)
