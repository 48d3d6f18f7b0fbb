"""Candidates under virtual clocks that drift, and a store that is slow and loses things."""

from __future__ import annotations

import functools
import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass

from moonpool.ha.election import RENEW, Action, Answer, Election, Record, Seen, Write, Written

LEASE_S = 3.0
DRIFT = 0.06


@dataclass
class Faults:
    """Chances and lengths of what goes wrong; seconds."""

    lost: float = 0.2
    slow: float = 0.3
    slow_s: float = 2 * LEASE_S
    frozen: float = 0.02
    frozen_s: float = 3 * LEASE_S
    resigns: float = 0.01


NONE = Faults(0, 0, 0, 0, 0, 0)


class Store:
    """Compares and swaps; remembers every epoch that was ever written first."""

    def __init__(self) -> None:
        self.seen = Seen("", None)
        self.claims: list[Record] = []

    def do(self, action: Action) -> Answer:
        """Serve a request now."""
        if not isinstance(action, Write):
            return self.seen
        if action.version != self.seen.version:
            return self.seen
        self.seen = Seen(str(int(self.seen.version or "0") + 1), action.record)
        if action.record.beat == 0:
            self.claims.append(action.record)
        return Written(self.seen.version)


class Candidate:
    """An election with a clock of its own."""

    def __init__(self, number: int, chance: random.Random) -> None:
        self.election = Election(f"life-{number}", f"10.0.0.{number}:1", LEASE_S)
        self.rate = 1 + chance.uniform(-DRIFT, DRIFT)
        self.offset = chance.uniform(0, 1e6)
        self.asked = 0
        self.frozen_until = 0.0

    def clock(self, now: float) -> float:
        """Return its own time at a true one."""
        return self.offset + self.rate * now

    def epoch(self, now: float) -> int | None:
        """Return the epoch in which it acts at a true time."""
        return self.election.epoch(self.clock(now))


class World:
    """Runs the candidates; checks after every event that at most one acts."""

    def __init__(self, seed: int, candidates: int = 3, faults: Faults | None = None) -> None:
        self.chance = random.Random(seed)
        self.faults = faults or Faults()
        self.now = 0.0
        self.store = Store()
        self.candidates = [Candidate(i, self.chance) for i in range(candidates)]
        self.acted: dict[int, int] = {}
        self.terms: list[int] = []
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        for number in range(candidates):
            self._at(self.chance.uniform(0, 1), functools.partial(self._step, number))

    def run(self, until: float) -> None:
        """Go on to a time."""
        while self._events and self._events[0][0] <= until:
            self.now, _, event = heapq.heappop(self._events)
            event()
            self._check()
        self.now = until

    def leaders(self) -> list[int]:
        """Return who acts."""
        return [i for i, each in enumerate(self.candidates) if each.epoch(self.now) is not None]

    def _at(self, time: float, event: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._events, (time, self._count, event))

    def _check(self) -> None:
        acting = self.leaders()
        assert len(acting) <= 1, f"{acting} act at {self.now}"
        for number in acting:
            epoch = self.candidates[number].epoch(self.now)
            assert epoch is not None
            assert self.acted.setdefault(epoch, number) == number, f"two led in epoch {epoch}"
            if not self.terms or self.terms[-1] != epoch:
                assert not self.terms or epoch > self.terms[-1], "an epoch went back"
                self.terms.append(epoch)

    def _step(self, number: int) -> None:
        me, chance, faults = self.candidates[number], self.chance, self.faults
        if self.now < me.frozen_until:
            self._at(me.frozen_until, lambda: self._step(number))
            return
        if chance.random() < faults.frozen:
            me.frozen_until = self.now + chance.uniform(0, faults.frozen_s)
        if chance.random() < faults.resigns:
            write = me.election.resign()
            if write is not None:
                self.store.do(write)
        local = me.clock(self.now)
        action = me.election.next(local, 0)
        if action is None:
            wait_s = max(me.election.wait_s(local), 0.01)
            self._at(self.now + min(wait_s, 1.0) / me.rate, lambda: self._step(number))
            return
        self._ask(number, action)

    def _ask(self, number: int, action: Action) -> None:
        me = self.candidates[number]
        me.asked += 1
        asked = me.asked
        if not self._is_lost():
            self._at(self.now + self._delay(), lambda: self._serve(number, asked, action))
        limit = self.now + RENEW * LEASE_S / me.rate
        self._at(limit, lambda: self._give_up(number, asked))

    def _serve(self, number: int, asked: int, action: Action) -> None:
        answer = self.store.do(action)
        if not self._is_lost():
            self._at(self.now + self._delay(), lambda: self._answer(number, asked, answer))

    def _answer(self, number: int, asked: int, answer: Answer) -> None:
        me = self.candidates[number]
        if self.now < me.frozen_until:
            self._at(me.frozen_until, lambda: self._answer(number, asked, answer))
        elif me.asked == asked:
            me.asked += 1
            me.election.answered(answer, me.clock(self.now))
            self._step(number)

    def _give_up(self, number: int, asked: int) -> None:
        me = self.candidates[number]
        if self.now < me.frozen_until:
            self._at(me.frozen_until, lambda: self._give_up(number, asked))
        elif me.asked == asked:
            me.asked += 1
            me.election.failed(me.clock(self.now))
            self._step(number)

    def _is_lost(self) -> bool:
        return self.chance.random() < self.faults.lost

    def _delay(self) -> float:
        if self.chance.random() < self.faults.slow:
            return self.chance.uniform(0, self.faults.slow_s)
        return self.chance.uniform(0.0001, 0.05)
