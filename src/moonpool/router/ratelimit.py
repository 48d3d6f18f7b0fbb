"""How many requests each key may send."""

from __future__ import annotations

from collections import OrderedDict

KEYS_MAX = 65_536


class RateLimiter:
    """A token bucket for each key, the longest idle forgotten first.

    per_minute: requests a minute in the long run, 0 for any number; burst: how many at once.
    """

    def __init__(self, per_minute: float, burst: float, keys_max: int = KEYS_MAX) -> None:
        self._per_s = per_minute / 60
        self._burst = max(1.0, burst)
        self._keys_max = keys_max
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._buckets)

    def take(self, key: str, now: float) -> float:
        """Take a token: return 0.0, or the seconds after which there will be one."""
        if not self._per_s:
            return 0.0
        level, since = self._buckets.pop(key, (self._burst, now))
        level = min(self._burst, level + (now - since) * self._per_s)
        allowed = level >= 1.0
        self._buckets[key] = (level - 1.0 if allowed else level, now)
        if len(self._buckets) > self._keys_max:
            self._buckets.popitem(last=False)
        return 0.0 if allowed else (1.0 - level) / self._per_s
