"""What the scheduler remembers of digests, bounded: known to be in the pool, or known to fail."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable

KNOWN_MAX = 131_072
FAILED_MAX = 8_192
FAILED_FOR_S = 30.0


class Known:
    """Digests that are in the pool as far as we know; the longest unused is forgotten first."""

    def __init__(self, limit: int = KNOWN_MAX) -> None:
        """Remember at most ``limit`` digests."""
        self._limit = limit
        self._digests: OrderedDict[bytes, float] = OrderedDict()
        self.gone: Callable[[list[bytes]], None] = lambda _: None
        """Told which digests were known and turned out to be missing."""

    def __contains__(self, digest: bytes) -> bool:
        return digest in self._digests

    def __len__(self) -> int:
        return len(self._digests)

    def add(self, digests: Iterable[bytes], now: float) -> None:
        """Remember digests that are there as of now."""
        for digest in digests:
            self._digests[digest] = now
            self._digests.move_to_end(digest)
        while len(self._digests) > self._limit:
            self._digests.popitem(last=False)

    def forget(self, digests: Iterable[bytes], asked_at: float, *, quiet: bool = False) -> None:
        """Forget digests that were missing then; what was added since is newer news. quiet: do not
        say that they are gone."""
        missing = [one for one in digests if self._digests.get(one, asked_at) < asked_at]
        for digest in missing:
            self._digests.pop(digest, None)
        if missing and not quiet:
            self.gone(missing)

    def clear(self) -> None:
        """Forget all."""
        self._digests.clear()


class Failed:
    """Digests whose load failed lately: hits end before them, so that no request loops."""

    def __init__(self, keep_s: float = FAILED_FOR_S, limit: int = FAILED_MAX) -> None:
        """Remember each for ``keep_s`` seconds and at most ``limit``."""
        self._keep_s, self._limit = keep_s, limit
        self._until: OrderedDict[bytes, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._until)

    def add(self, digest: bytes, now: float) -> None:
        """Remember a failure."""
        self._until.pop(digest, None)
        self._until[digest] = now + self._keep_s
        while len(self._until) > self._limit:
            self._until.popitem(last=False)

    def has(self, digest: bytes, now: float) -> bool:
        """Return whether the digest failed lately."""
        until = self._until.get(digest)
        if until is None:
            return False
        if until <= now:
            del self._until[digest]
            return False
        return True

    def forget(self, digests: Iterable[bytes]) -> None:
        """Forget failures of digests that have been saved anew."""
        for digest in digests:
            self._until.pop(digest, None)

    def clear(self) -> None:
        """Forget all."""
        self._until.clear()
