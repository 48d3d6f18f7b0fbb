"""A pool of objects of one size: the core's policy over the core's index, and nothing else.

What the master adds (messages, places, leases) does not change which object goes; a test compares
the two. It costs several times as much.
"""

from __future__ import annotations

from typing import Final

from moonpool.bench.eviction_load import Ask, Load
from moonpool.core.eviction import make_policy
from moonpool.core.index import Index, Object, placed
from moonpool.core.marks import Marks
from moonpool.core.messages import Located
from moonpool.core.sessions import Sessions, unused

OBJECT_BYTES: Final = 4096
_PLACE: Final = placed(Located(OBJECT_BYTES))


class _NoMarks(Marks):
    """Nobody looks anything up by its mark here."""

    def add(self, key: bytes) -> None:
        pass

    def remove(self, key: bytes) -> None:
        pass


class Pool:
    """Room for ``capacity`` objects. ``behind_gap`` counts those put that were there already."""

    def __init__(
        self, load: Load, policy: str, capacity: int, *, sessions: Sessions | None = None
    ) -> None:
        """sessions: where conversations are kept whose end is said."""
        self.behind_gap = 0
        self._sessions = sessions
        self._policy = make_policy(policy, lambda: capacity * OBJECT_BYTES)
        self._index = Index(_NoMarks())
        self._capacity = capacity
        self._keys = load.keys
        self._numbers = {key: number for number, key in enumerate(load.keys)}
        self._there: list[Object | None] = [None] * len(load.keys)
        self._stamp = 0

    def request(self, ask: Ask) -> int:
        """Serve a request; return how many leading objects were there."""
        there, wanted = self._there, ask.objects
        known: list[Object] = []
        for number in wanted:
            each = there[number]
            if each is None:
                break
            known.append(each)
        self._touch(known)
        self._policy.used(known)
        for at in range(len(known), len(wanted)):
            found = there[wanted[at]]
            if found is None:
                self._put(wanted[at], wanted[at - 1] if at else -1)
            else:
                self.behind_gap += 1
                self._touch([found])
                self._policy.used([found])
        if self._sessions is not None and ask.conversation:
            self._note(self._sessions, ask)
        return len(known)

    def _note(self, sessions: Sessions, ask: Ask) -> None:
        """Do what UseSession and EndSession do."""
        end = self._there[ask.objects[-1]] if ask.objects else None
        if end is not None:
            sessions.use(ask.conversation, [end])
        if ask.last:
            found = [self._index.find(key) for key in sessions.end(ask.conversation)]
            released = self._policy.released
            ends = [each for each in found if each is not None]
            released.add(unused(ends, sessions.users, released.stamps))

    def _touch(self, used: list[Object]) -> None:
        apart = self._policy.counts
        self._stamp += 1
        for each in used:
            each.used = self._stamp
            self._stamp += apart

    def _put(self, number: int, parent: int) -> None:
        policy, key = self._policy, self._keys[number]
        above = self._there[parent] if parent >= 0 else None
        self._stamp += 1
        if above is not None:
            above.used = self._stamp
            policy.continued(above)
        if self._index.count == self._capacity:
            policy.coming(key, above)
            victim = policy.pop()
            if victim is not None:
                self._evict(victim)
            policy.coming(b"")
            if victim is None:
                return
        self._stamp += 1
        parent_key = self._keys[parent] if parent >= 0 else b""
        added = Object(-1, self._stamp, self._stamp, key, parent_key, _PLACE)
        self._index.add(added)
        self._there[number] = added
        policy.offer(added, self._index.count)

    def _evict(self, victim: Object) -> None:
        policy = self._policy
        self._there[self._numbers[victim.key]] = None
        if self._sessions is not None:
            self._sessions.gone(victim)
            policy.released.forget(victim)
        policy.evicted(victim)
        policy.removed(victim)
        parent = self._index.remove(victim)
        if parent is not None and parent.first_child is None:
            policy.offer(parent, self._index.count)
