"""Which puts of this client are under way, and for which the master may hold space in vain.

The master gives the space of a put to others when the put was ended or revoked, or when this
client's process is gone. So whatever breaks in between is remembered here and revoked later:
puts whose PutEnd or PutRevoke may not have arrived, puts that a node may still be writing, and
puts that were granted but the grant was lost on its way.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import threading
import time
from collections.abc import Iterable, Sequence

from moonpool.client.answers import as_many, expect, sound
from moonpool.client.channel import Channel
from moonpool.client.connection import LateAnswerError, LostAnswerError
from moonpool.core.messages import (
    Codes,
    Grant,
    Listed,
    PutAbandon,
    PutEnd,
    PutRevoke,
    PutStart,
    PutStarted,
    Stat,
)
from moonpool.errors import MasterUnreachableError, MoonpoolError, ProtocolError
from moonpool.protocol.versions import ABANDON_SINCE

REVOKE_TIMEOUT_S = 1.0
SOON_S = 1.0
SETTLE_S = 90.0
"""A write over TCP that broke off may go on at the node for as long as the node lets it take."""
TRIES = 5
PENDING_MAX = 4096

_UNANSWERED = (LostAnswerError, LateAnswerError, ProtocolError, KeyboardInterrupt)
_Work = tuple[float, int, list[int], list[bytes]]
"""When to do it, tries left, generations to revoke, keys whose grants were lost."""


class PutLedger:
    """Speaks with the master about puts. May be used from several threads."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._lock = threading.Lock()
        self._work: list[_Work] = []
        self._tickets = itertools.count()
        # Changed by single operations on built-in types only, which need no lock.
        self._starting: dict[int, Sequence[bytes]] = {}
        self._under_way: set[int] = set()

    def start(self, request: PutStart, keys: Sequence[bytes]) -> tuple[Sequence[Grant], int]:
        """Ask for space; return a grant for each key, and the epoch in which their segments'
        numbers count. Raises MasterUnreachableError."""
        if self._work:
            self.settle(time.monotonic())
        ticket = next(self._tickets)
        self._starting[ticket] = keys
        try:
            answer, epoch = self._channel.ask(request)
            grants = as_many(expect(PutStarted, answer).grants, len(keys))
            sound(grant.code for grant in grants)
            self._under_way.update([grant.generation for grant in grants if grant.code == 0])
        except _UNANSWERED:
            self._later(SOON_S, TRIES, [], list(keys))
            raise
        finally:
            del self._starting[ticket]
        return grants, epoch

    def end(self, generations: list[int], checksums: list[int]) -> Sequence[int]:
        """Commit; return a code for each. Raises MasterUnreachableError: it is not known then
        whether the objects are there."""
        try:
            reply = self._channel.call(PutEnd(generations, checksums))
            ended = as_many(expect(Codes, reply).codes, len(generations))
            sound(ended)
            return ended
        except BaseException:
            self._later(SOON_S, TRIES, generations, [])
            raise
        finally:
            self._under_way.difference_update(generations)

    def give_up(self, generations: Iterable[int]) -> None:
        """Tell the master that these puts will not be written any more."""
        given_up = list(generations)
        self._under_way.difference_update(given_up)
        if given_up and not self._revoke(given_up):
            self._later(SOON_S, TRIES, given_up, [])

    def doubt(self, generations: Iterable[int]) -> None:
        """Give the keys of these puts up at once, and their space when nobody can be writing there
        any more. An older master keeps the keys until it finds that the puts take too long."""
        doubtful = list(generations)
        if doubtful:
            self._under_way.difference_update(doubtful)
            self._later(SETTLE_S, TRIES, doubtful, [])
            if self._channel.version >= ABANDON_SINCE:
                with contextlib.suppress(MoonpoolError):
                    self._channel.call(PutAbandon(doubtful), REVOKE_TIMEOUT_S)

    def settle(self, now: float) -> None:
        """Do what was put off until ``now`` (monotonic seconds)."""
        with self._lock:
            work: list[_Work] = []
            while self._work and self._work[0][0] <= now:
                work.append(heapq.heappop(self._work))
        for _, tries, generations, keys in work:
            if not self._done(generations, keys) and tries > 1:
                self._later(SOON_S * 2 ** (TRIES - tries), tries - 1, generations, keys)

    def _later(self, after_s: float, tries: int, generations: list[int], keys: list[bytes]) -> None:
        with self._lock:
            if len(self._work) < PENDING_MAX:
                due = time.monotonic() + after_s
                heapq.heappush(self._work, (due, tries, generations, keys))

    def _done(self, generations: list[int], keys: list[bytes]) -> bool:
        with contextlib.suppress(MasterUnreachableError):
            lost = [found for key in keys if (found := self._lost(key))]
            return self._revoke(generations + lost)
        return False

    def _revoke(self, generations: list[int]) -> bool:
        try:
            if generations:
                self._channel.call(PutRevoke(generations), REVOKE_TIMEOUT_S)
        except MasterUnreachableError:
            return False
        except MoonpoolError:
            return True
        return True

    def _lost(self, key: bytes) -> int:
        """Return the generation of a put of the key that the master takes for under way and that
        no thread here knows of; 0 if there is none. (Another client's is refused by the master.)"""
        reply = expect(Listed, self._channel.call(Stat(key), REVOKE_TIMEOUT_S))
        for info in reply.objects:
            # In this order: a grant that has just come is first known, then not starting any more.
            starting = any(key in keys for keys in list(self._starting.values()))
            if not info.complete and not starting and info.generation not in self._under_way:
                return info.generation
        return 0
