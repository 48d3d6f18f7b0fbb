"""How long a process that ends by itself is started again."""

from __future__ import annotations

WINDOW_S = 300.0
ENDS_MAX = 5
"""Within the window; one more, and the process is given up."""
WAIT_FIRST_S, WAIT_MAX_S = 1.0, 30.0


class Endurance:
    """One process's ends: the first is followed by a start at once, the next ones by longer waits,
    so that a process that cannot run does not keep the machine busy."""

    def __init__(self) -> None:
        self._ends: list[float] = []

    def ended(self, now: float) -> float | None:
        """Note an end; return after how many seconds to start again, None to give it up."""
        self._ends = [each for each in self._ends if each > now - WINDOW_S]
        before = len(self._ends)
        self._ends.append(now)
        if before >= ENDS_MAX:
            return None
        return 0.0 if not before else min(WAIT_MAX_S, WAIT_FIRST_S * 2.0 ** (before - 1))
