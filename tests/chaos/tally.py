"""What a client counts, in a file that outlives it however it ends; others read along."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

from moonpool import MoonpoolError

KINDS = ("turn", "save", "load", "keep", "read", "get", "look", "remove", "connect")
"""Operations: a turn's lookup and lease, its loads (an object each) and saves (likewise), puts of
objects that have to stay, reads of these, reads of single objects, lookups, removals."""
OUTCOMES = (
    "ok", "miss", "taken", "full", "leased", "late", "given up", "not moved", "damaged", "away",
    "odd", "wrong",
)  # fmt: skip
"""``wrong``: other bytes than were put; ``odd``: an error that nothing that went wrong explains."""
_OF_CODE = {
    0: "ok", -704: "miss", -703: "miss", -705: "taken", -200: "full", -706: "leased", -707: "late",
    -700: "given up", -800: "not moved", -801: "damaged", -900: "away", -901: "away",
    -1010: "away",
}  # fmt: skip
WORDS = 16


def outcome_of(code: int) -> str:
    """Return what a code stands for."""
    return _OF_CODE.get(code, "odd")


class Tally:
    """Counts by operation and outcome, the slowest of each kind, and what is under way."""

    def __init__(self, path: Path) -> None:
        shape = (len(KINDS) + 1, WORDS)
        nbytes = 8 * shape[0] * shape[1]
        if not path.exists():
            path.write_bytes(bytes(nbytes))
        self._words: Any = np.memmap(path, np.uint64, "r+", shape=shape)
        self._state = self._words[-1]

    def count(self, kind: str, outcome: str, times: int = 1) -> None:
        """Count an operation's end."""
        self._words[KINDS.index(kind), OUTCOMES.index(outcome)] += np.uint64(times)

    def number(self, which: int) -> int:
        """Return the next of a row of numbers, of which none comes twice in all lives."""
        self._state[4 + which] += np.uint64(1)
        return int(self._state[4 + which])

    def last(self, which: int) -> int:
        """Return the last of a row of numbers that was given."""
        return int(self._state[4 + which])

    # --- what is under way ----------------------------------------------------------------------

    def begin(self, kind: str) -> None:
        """Note that a call begins."""
        self._state[1] = KINDS.index(kind)
        self._state[0] = time.monotonic_ns()

    def end(self) -> None:
        """Note that it has ended."""
        kind, began = int(self._state[1]), int(self._state[0])
        self._state[0] = 0
        self._state[2] += np.uint64(1)
        slowest = self._words[kind]
        slowest[-1] = max(int(slowest[-1]), time.monotonic_ns() - began)

    def drop(self) -> None:
        """Forget what was under way: its process is dead."""
        self._state[0] = 0

    @property
    def under_way(self) -> tuple[str, float, int]:
        """What call is under way, since when (as of time.monotonic), and its number."""
        began = int(self._state[0])
        return KINDS[int(self._state[1])], began / 1e9, int(self._state[2])

    # --- what others say ------------------------------------------------------------------------

    @property
    def holds(self) -> bool:
        """Whether nothing may be put for now."""
        return bool(self._state[3])

    @holds.setter
    def holds(self, held: bool) -> None:
        self._state[3] = int(held)

    def counts(self) -> dict[str, dict[str, int]]:
        """Return the counts above 0."""
        return {
            kind: {o: int(n) for o, n in zip(OUTCOMES, row, strict=False) if n}
            for kind, row in zip(KINDS, self._words, strict=False)
        }

    def slowest_s(self) -> dict[str, float]:
        """Return how long the slowest call of each kind took."""
        return {k: int(row[-1]) / 1e9 for k, row in zip(KINDS, self._words, strict=False)}


def code_of(error: MoonpoolError) -> int:
    """Return the code of an error."""
    return type(error).code
