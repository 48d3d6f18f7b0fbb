from __future__ import annotations

import time

import pytest

from moonpool.client import ledger as limits
from moonpool.client.connection import Connection, LateAnswerError, LostAnswerError
from moonpool.client.ledger import PutLedger
from moonpool.core import messages as m
from moonpool.core.master import MasterConfig, MasterState
from moonpool.errors import MasterUnreachableError
from moonpool.protocol.versions import ABANDON_SINCE, PROTOCOL_MAX

KEY = b"\0k"
LATER = 1000.0


class Line:
    """A channel to a real state; ``lose`` names requests that are served but whose answer is
    lost, ``down`` is a master that is away."""

    def __init__(self) -> None:
        self.state = MasterState(MasterConfig(), 1)
        self.lose: set[type[m.Request]] = set()
        self.down = False
        info = m.SegmentInfo("s", "n", "h", "", "", 1 << 24, 64)
        mounted = self.state.handle(m.Mount(info), "n", 0.0).reply
        assert isinstance(mounted, m.Mounted)
        self.state.handle(m.Announce(mounted.handle, [], True), "n", 0.0)

    def call(self, request: m.Request, timeout_s: float | None = None) -> m.Reply:
        return self.ask(request, timeout_s)[0]

    def ask(self, request: m.Request, timeout_s: float | None = None) -> tuple[m.Reply, int]:
        if self.down:
            raise MasterUnreachableError("away")
        reply = self.state.handle(request, "client", 0.0).reply
        assert reply is not None
        if type(request) in self.lose:
            raise LostAnswerError("lost")
        return reply, 1

    def send_only(self, request: m.Request) -> None:
        raise NotImplementedError

    version = PROTOCOL_MAX
    kv_lease_s = 10.0

    def dedicated(self, timeout_s: float) -> Connection:
        raise NotImplementedError

    def board(self) -> None:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError

    def under_way(self) -> int:
        status = self.call(m.GetStatus())
        assert isinstance(status, m.Status)
        return status.puts_in_progress

    def reserved(self) -> int:
        """Bytes that nobody gets although their puts were given up."""
        status = self.call(m.GetStatus())
        assert isinstance(status, m.Status)
        return status.segments[0].pending_bytes


@pytest.fixture
def line() -> Line:
    return Line()


@pytest.fixture
def ledger(line: Line) -> PutLedger:
    return PutLedger(line)


def start(ledger: PutLedger, key: bytes = KEY) -> m.Grant:
    (grant,), epoch = ledger.start(m.PutStart([m.PutItem(key, 100)]), [key])
    assert (grant.code, epoch) == (0, 1)
    return grant


def much_later(ledger: PutLedger) -> None:
    ledger.settle(time.monotonic() + LATER)


def test_a_put_that_is_ended_leaves_nothing_to_do(line: Line, ledger: PutLedger) -> None:
    grant = start(ledger)
    assert ledger.end([grant.generation], [7]) == [0]
    assert line.under_way() == 0
    assert not ledger._work
    assert not ledger._starting
    assert not ledger._under_way


def test_a_lost_grant_is_revoked_after_a_while(line: Line, ledger: PutLedger) -> None:
    line.lose = {m.PutStart}
    with pytest.raises(LostAnswerError):
        start(ledger)
    line.lose = set()
    assert line.under_way() == 1
    ledger.settle(time.monotonic())
    assert line.under_way() == 1
    much_later(ledger)
    assert line.under_way() == 0
    start(ledger)


def test_a_put_of_another_thread_is_left_alone(line: Line, ledger: PutLedger) -> None:
    grant = start(ledger)
    ledger._later(0.0, 1, [], [KEY])
    much_later(ledger)
    assert line.under_way() == 1
    ledger._under_way.clear()
    ledger._starting[99] = [b"\0other", KEY]
    ledger._later(0.0, 1, [], [KEY])
    much_later(ledger)
    assert line.under_way() == 1
    assert ledger.end([grant.generation], [7]) == [0]


def test_a_lost_grant_of_what_was_put_again_since_harms_nothing(
    line: Line, ledger: PutLedger
) -> None:
    line.lose = {m.PutStart}
    with pytest.raises(LostAnswerError):
        start(ledger)
    line.lose = set()
    line.state.handle(m.PeerGone("client", "client"), "", 0.0)
    grant = start(ledger)
    assert ledger.end([grant.generation], [7]) == [0]
    much_later(ledger)
    assert line.call(m.Exists([KEY])) == m.Existing(b"\1")


def test_a_lost_end_does_not_take_the_object_away(line: Line, ledger: PutLedger) -> None:
    grant = start(ledger)
    line.lose = {m.PutEnd}
    with pytest.raises(LostAnswerError):
        ledger.end([grant.generation], [7])
    line.lose = set()
    much_later(ledger)
    assert line.call(m.Exists([KEY])) == m.Existing(b"\1")
    assert not ledger._under_way


def test_an_end_that_never_arrived_gives_the_space_back(line: Line, ledger: PutLedger) -> None:
    grant = start(ledger)
    line.down = True
    with pytest.raises(MasterUnreachableError):
        ledger.end([grant.generation], [7])
    line.down = False
    assert line.under_way() == 1
    much_later(ledger)
    assert line.under_way() == 0


def test_what_may_still_be_written_is_kept_for_longer(line: Line, ledger: PutLedger) -> None:
    grant = start(ledger)
    ledger.doubt([grant.generation])
    ledger.settle(time.monotonic() + limits.SETTLE_S - 1)
    assert line.reserved()
    ledger.settle(time.monotonic() + limits.SETTLE_S + 1)
    assert not line.reserved()


def test_the_key_of_what_may_still_be_written_is_free_at_once(
    line: Line, ledger: PutLedger
) -> None:
    """A put that broke off over TCP answered -705 to the next put of its key for 30 s."""
    ledger.doubt([start(ledger).generation])
    again = start(ledger)
    assert line.under_way() == 1
    assert line.reserved()
    assert ledger.end([again.generation], [7]) == [0]


def test_an_older_master_is_not_told_what_it_does_not_know(line: Line, ledger: PutLedger) -> None:
    line.version = ABANDON_SINCE - 1
    ledger.doubt([start(ledger).generation])
    (grant,), _ = ledger.start(m.PutStart([m.PutItem(KEY, 100)]), [KEY])
    assert grant.code == -705


def test_a_master_that_is_away_is_tried_again_a_few_times(line: Line, ledger: PutLedger) -> None:
    grant = start(ledger)
    line.down = True
    ledger.give_up([grant.generation])
    for _ in range(limits.TRIES - 1):
        assert ledger._work
        much_later(ledger)
    line.down = False
    much_later(ledger)
    assert line.under_way() == 0
    line.down = True
    ledger.give_up([1])
    for _ in range(limits.TRIES):
        much_later(ledger)
    assert not ledger._work


def test_a_master_that_is_known_to_be_away_costs_no_memory(line: Line, ledger: PutLedger) -> None:
    line.down = True
    for _ in range(10):
        with pytest.raises(MasterUnreachableError):
            start(ledger)
    assert not ledger._work


def test_what_is_remembered_is_bounded(
    line: Line, ledger: PutLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "PENDING_MAX", 3)
    line.lose = {m.PutStart}
    for i in range(9):
        with pytest.raises(LostAnswerError):
            start(ledger, b"\0%d" % i)
    assert len(ledger._work) == 3


def test_a_late_answer_counts_as_lost(
    line: Line, ledger: PutLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    def late(request: m.Request, timeout_s: float | None = None) -> tuple[m.Reply, int]:
        raise LateAnswerError("late")

    monkeypatch.setattr(line, "ask", late)
    with pytest.raises(LateAnswerError):
        start(ledger)
    assert len(ledger._work) == 1
