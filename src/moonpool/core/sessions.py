"""Clients' sessions: which prefixes they use, and what nobody uses any more when one ends.

A session is known by the ends of its prefixes: all that an end continues is its too. An end that
leaves memory moves to what it continued. So little has to be kept, and a session that ends gives
up exactly what hangs on nothing but its own ends.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from moonpool.core.index import Object, children_of

SESSIONS_MAX: Final = 65_536
ENDS_MAX: Final = 64
"""Ends that one session may have; the oldest are forgotten first."""
ENDS_TOTAL_MAX: Final = 131_072
RELEASED_MAX: Final = 65_536
"""Objects that one end of a session looks at, at most."""


class Sessions:
    """All sessions, those heard of least recently first."""

    def __init__(self) -> None:
        self._ends: dict[str, dict[bytes, None]] = {}
        self.users: dict[bytes, set[str]] = {}
        """The sessions that have an end at a key."""
        self._total = 0

    def __len__(self) -> int:
        return len(self._ends)

    def use(self, session: str, ends: Iterable[Object]) -> int:
        """A session uses the prefixes that end with these objects; return how many sessions had
        to be forgotten for it."""
        mine = self._ends[session] = self._ends.pop(session, {})
        for each in ends:
            self._drop(session, mine, each.key)
            if len(mine) >= ENDS_MAX:
                self._drop(session, mine, next(iter(mine)))
            self._add(session, mine, each.key)
        forgotten = 0
        while len(self._ends) > SESSIONS_MAX or self._total > ENDS_TOTAL_MAX:
            self._forget(next(iter(self._ends)))
            forgotten += 1
        return forgotten

    def end(self, session: str) -> list[bytes]:
        """Forget a session; return its ends, the newest first."""
        return list(reversed(self._forget(session)))

    def gone(self, removed: Object) -> None:
        """An object leaves memory: ends there move to what it continued."""
        for session in sorted(self.users.get(removed.key, ())):
            mine = self._ends[session]
            self._drop(session, mine, removed.key)
            if removed.parent_key and removed.parent_key not in mine:
                self._add(session, mine, removed.parent_key)

    def _add(self, session: str, mine: dict[bytes, None], key: bytes) -> None:
        mine[key] = None
        self.users.setdefault(key, set()).add(session)
        self._total += 1

    def _drop(self, session: str, mine: dict[bytes, None], key: bytes) -> None:
        if key not in mine:
            return
        del mine[key]
        self._total -= 1
        users = self.users[key]
        users.discard(session)
        if not users:
            del self.users[key]

    def _forget(self, session: str) -> list[bytes]:
        mine = self._ends.pop(session, {})
        ends = list(mine)
        for key in ends:
            self._drop(session, mine, key)
        return ends

    def validate(self) -> None:
        """Raise AssertionError if the parts contradict each other."""
        pairs = {(session, key) for session, mine in self._ends.items() for key in mine}
        assert pairs == {(each, key) for key, users in self.users.items() for each in users}
        assert all(self.users.values())
        assert self._total == len(pairs) <= ENDS_TOTAL_MAX
        assert len(self._ends) <= SESSIONS_MAX
        assert all(len(mine) <= ENDS_MAX for mine in self._ends.values())


def unused(
    ends: Iterable[Object], users: dict[bytes, set[str]], released: dict[Object, int]
) -> list[Object]:
    """Return what hangs on these ends alone, children before their parents.

    ``released`` is what was given up before, with the stamp of its last use: it counts as unused
    as long as it was not used since.
    """
    found: dict[Object, None] = {}
    for end in ends:
        each: Object | None = end
        while each is not None and len(found) < RELEASED_MAX:
            if each in found or each.key in users:
                break
            if any(
                child not in found and released.get(child) != child.used
                for child in children_of(each)
            ):
                break
            found[each] = None
            each = each.parent
    return list(found)
