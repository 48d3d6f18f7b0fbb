"""The master's handoffs beside a plain model of them, under random requests, losses and clocks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from moonpool.core import messages as m
from moonpool.core.master import MasterConfig, MasterState
from tests.unit.core.driver import block, segment_info

CONFIG = MasterConfig(handoffs_max=4, waiters_per_peer_max=3, waiters_max=5)
KEYS: list[bytes] = [block(n) for n in range(5)]
TRANSFERS = ["", "t", "u", "v", "w", "x"]
PEERS = ["p", "q"]
CLOSED = (m.ENDED, m.FAILED)


@dataclass
class Waiter:
    peer: str
    keys: list[bytes]
    transfer: str
    until: float


@dataclass
class Known:
    state: int
    heard: float
    holders: dict[tuple[str, int], float] = field(default_factory=dict)


class Handoffs(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.master = MasterState(CONFIG, 1)
        self.now = 0.0
        self.scanned = 0.0
        self.there: set[bytes] = set()
        self.waiters: dict[int, Waiter] = {}
        self.known: dict[str, Known] = {}
        self.lost: dict[str, float] = {}
        self.expected: set[int] = set()
        mounted = self.ask(m.Mount(segment_info()), "node")
        self.ask(m.Announce(mounted.handle, [], True), "node")

    def ask(self, request: Any, peer: str) -> Any:
        outcome = self.master.handle(request, peer, self.now)
        self.master.validate_state()
        for number, answer in outcome.answers:
            waiter = self.waiters.pop(number)
            assert number in self.expected, "answered without a reason"
            assert answer.count == self.leading(waiter.keys)
            self.expected.remove(number)
        assert not self.expected, "not answered"
        return m.Parked(outcome.parked) if outcome.parked else outcome.reply

    def leading(self, keys: list[bytes]) -> int:
        return next((n for n, key in enumerate(keys) if key not in self.there), len(keys))

    def close(self, transfer: str, holder: tuple[str, int] | None, state: int) -> None:
        known = self.known[transfer]
        if holder is not None:
            known.holders.pop(holder, None)
        if not any(peer == holder[0] for peer, _ in self.held()) if holder else False:
            self.lost.pop(holder[0] if holder else "", None)
        if known.holders:
            return
        del self.known[transfer]
        self.known[transfer] = known
        known.state, known.heard = state, self.now
        self.expected |= {n for n, each in self.waiters.items() if each.transfer == transfer}

    def held(self) -> list[tuple[str, int]]:
        return [holder for known in self.known.values() for holder in known.holders]

    @rule(number=st.integers(0, 4))
    def put(self, number: int) -> None:
        key = KEYS[number]
        started = self.ask(m.PutStart([m.PutItem(key, 1)]), "writer")
        if key in self.there:
            return
        self.there.add(key)
        self.expected |= {n for n, each in self.waiters.items() if each.keys[0] == key}
        self.ask(m.PutEnd([started.grants[0].generation], [0]), "writer")

    @rule(number=st.integers(0, 4))
    def remove(self, number: int) -> None:
        self.there.discard(KEYS[number])
        self.ask(m.Remove([KEYS[number]], True), "writer")

    @rule(
        first=st.integers(0, 4),
        transfer=st.sampled_from(TRANSFERS),
        wait_s=st.sampled_from([0.0, 0.5, 5.0, 1e9]),
        peer=st.sampled_from(["d", "e"]),
    )
    def wait(self, first: int, transfer: str, wait_s: float, peer: str) -> None:
        keys = KEYS[first:]
        reply = self.ask(m.Await(keys, transfer, wait_s), peer)
        known = self.known.get(transfer)
        state = known.state if known else m.UNHEARD
        if self.leading(keys) or state in CLOSED or not wait_s:
            assert (reply.count, reply.state) == (self.leading(keys), state)
        elif len(self.waiters) >= 5 or sum(w.peer == peer for w in self.waiters.values()) >= 3:
            assert isinstance(reply, m.Failed)
        else:
            until = self.now + min(wait_s, CONFIG.await_s_max)
            self.waiters[reply.number] = Waiter(peer, keys, transfer, until)

    @precondition(lambda self: self.waiters)
    @rule(pick=st.integers(0, 4))
    def hang_up(self, pick: int) -> None:
        number = list(self.waiters)[pick % len(self.waiters)]
        del self.waiters[number]
        self.ask(m.WaitersGone([number]), "")

    @rule(
        transfer=st.sampled_from(TRANSFERS[1:]),
        number=st.integers(1, 2),
        state=st.sampled_from([m.OPEN, m.OPEN, m.ENDED, m.FAILED]),
        peer=st.sampled_from(PEERS),
    )
    def tell(self, transfer: str, number: int, state: int, peer: str) -> None:
        known = self.known.get(transfer)
        new = known is None or (peer, number) not in known.holders
        if state == m.OPEN and new and len(self.held()) >= CONFIG.handoffs_max:
            assert self.ask(m.Tell([m.News(transfer, number, state)]), peer) == m.Done()
            return
        if known is None and len(self.known) >= CONFIG.handoffs_max:
            oldest = next((name for name, each in self.known.items() if not each.holders), None)
            if oldest is not None:
                del self.known[oldest]
        if known is None and len(self.known) < CONFIG.handoffs_max:
            known = self.known[transfer] = Known(state, self.now)
        if known is not None:
            known.heard = self.now
            if state == m.OPEN:
                known.state = m.OPEN
                known.holders[peer, number] = self.now
                self.lost.pop(peer, None)
            else:
                self.close(transfer, (peer, number), state)
        assert self.ask(m.Tell([m.News(transfer, number, state)]), peer) == m.Done()

    @rule(peer=st.sampled_from(PEERS))
    def peer_goes(self, peer: str) -> None:
        if any(each == peer for each, _ in self.held()):
            self.lost[peer] = self.now
        self.ask(m.PeerGone(peer, "client"), "")

    @rule(passed_s=st.sampled_from([0.0, 0.4, 1.0, 2.0, 31.0, 61.0]))
    def tick(self, passed_s: float) -> None:
        self.now += passed_s
        self.expected |= {n for n, each in self.waiters.items() if each.until <= self.now}
        for peer in [each for each, since in self.lost.items() if self.now - since >= 2.0]:
            for transfer in sorted(self.known):
                for holder in [h for h in self.known[transfer].holders if h[0] == peer]:
                    self.close(transfer, holder, m.FAILED)
        if self.now - self.scanned >= 1.0:
            self.scanned = self.now
            for transfer, known in list(self.known.items()):
                for holder in [h for h, heard in known.holders.items() if heard <= self.now - 60]:
                    self.close(transfer, holder, m.FAILED)
                if not known.holders and known.heard <= self.now - 60:
                    del self.known[transfer]
        self.ask(m.Tick(), "")

    @invariant()
    def states_are_as_they_must_be(self) -> None:
        for transfer in TRANSFERS[1:]:
            known = self.known.get(transfer)
            state, _ = self.master.state.handoffs.look(transfer, self.now)
            assert state == (known.state if known else m.UNHEARD)
        assert self.master.state.handoffs.waiting == len(self.waiters)


TestHandoffs = Handoffs.TestCase
TestHandoffs.settings = settings(
    max_examples=100,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
