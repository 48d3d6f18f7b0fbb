"""When an instance that failed is asked again."""

from __future__ import annotations

from dataclasses import dataclass

COOLDOWN_S = 0.5
COOLDOWN_MAX_S = 10.0


@dataclass(slots=True)
class Circuit:
    """Closed while all is well, open for a growing pause after each failure in a row.

    After a pause one trial goes through; the others wait for its outcome, or for as long as one
    more pause when nothing is heard of it. Times are seconds of the caller's clock.
    """

    failures: int = 0
    open_until_s: float = 0.0

    def allows(self, now: float) -> bool:
        """Return whether the instance may be asked at ``now``."""
        return now >= self.open_until_s

    def begin(self, now: float) -> None:
        """Note that a request is sent: after a failure it is the trial."""
        if self.failures:
            self.open_until_s = max(self.open_until_s, now + self._pause_s(self.failures))

    def success(self) -> None:
        """Note an answer."""
        self.failures, self.open_until_s = 0, 0.0

    def failure(self, now: float) -> None:
        """Note a connection that could not be made, or broke without an answer."""
        self.failures += 1
        self.open_until_s = now + self._pause_s(self.failures)

    def describe(self, now: float) -> str:
        """Return ``closed``, ``open`` or ``half-open``, as electricians and operators say."""
        if not self.failures:
            return "closed"
        return "half-open" if self.allows(now) else "open"

    @staticmethod
    def _pause_s(failures: int) -> float:
        return float(min(COOLDOWN_MAX_S, COOLDOWN_S * 2 ** min(failures - 1, 8)))
