from __future__ import annotations

import logging
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from moonpool.core import messages as m
from moonpool.master import service as limits
from moonpool.master.metrics import registry_of, render
from moonpool.master.pages import as_plain
from moonpool.master.service import LogLimit, Service
from tests.unit.master.peers import Clock, Peer, mount, new_service, put, start


def status_of(service: Service) -> m.Status:
    """Return the status of now; the clock of these tests stands still between requests."""
    return service.status()


def test_a_client_is_gone_with_its_last_connection() -> None:
    service = new_service()
    node, other = Peer(service, "n1", "node"), Peer(service, "c2")
    mount(node)
    first, second = Peer(service, "c1"), Peer(service, "c1")
    put(other, b"\0a")
    start(first, b"\0b")
    first.ask(m.Get([b"\0a"], 1, 600.0))
    first.hang_up()
    assert (status_of(service).leases, status_of(service).puts_in_progress) == (1, 1)
    second.hang_up()
    assert (status_of(service).leases, status_of(service).puts_in_progress) == (0, 0)
    assert [type(push) for _, push in node.replies()] == [m.FenceWriter]
    assert status_of(service).clients == 1


def test_a_nodes_objects_are_gone_with_its_connection() -> None:
    service = new_service()
    node, client = Peer(service, "n1", "node"), Peer(service, "c1")
    mount(node)
    put(client, b"\0a")
    assert client.ask(m.MatchKeys([b"\0a"])) == m.Matched(1)
    node.hang_up()
    assert client.ask(m.MatchKeys([b"\0a"])) == m.Matched(0)


def test_pushes_go_to_the_newest_connection_of_a_node() -> None:
    service = new_service()
    old, new = Peer(service, "n1", "node"), Peer(service, "n1", "node")
    client = Peer(service, "c1")
    mount(new)
    put(client, b"\0a")
    old.hang_up()
    client.ask(m.Remove([b"\0a"]))
    assert [type(push) for _, push in new.replies()] == [m.DropSlots]


def test_a_node_whose_dead_life_spoke_last_has_to_begin_anew() -> None:
    """What a killed node has sent may arrive after what its next life says."""
    service = new_service()
    living, dead = Peer(service, "life-2", "node"), Peer(service, "life-1", "node")
    mount(living)
    mount(dead)
    assert living.replies() == []
    dead.hang_up()
    assert living.closed
    assert not service.state.state.segments.by_handle


def test_a_name_has_one_role() -> None:
    service = new_service()
    Peer(service, "x", "node")
    peer = Peer(service)
    reply = peer.ask(m.Hello(1, 1, "client", "x"))
    assert isinstance(reply, m.Failed)
    assert (reply.code, peer.closed) == (-601, True)


@pytest.mark.parametrize(
    "request_", [m.Unmount(1), m.WriterGone("c2"), m.Announce(1, [], True)], ids=repr
)
def test_node_verbs_are_for_nodes(request_: m.Request) -> None:
    reply = Peer(new_service(), "c1").ask(request_)
    assert isinstance(reply, m.Failed)
    assert reply.code == -601


CHANGING: list[m.Request] = [
    m.PutStart([]),
    m.PutEnd([], []),
    m.PutRevoke([]),
    m.PutAbandon([]),
    m.Remove([]),
    m.RemoveAll(),
]


@pytest.mark.parametrize("request_", CHANGING, ids=repr)
def test_with_a_token_changes_want_it_and_lookups_do_not(request_: m.Request) -> None:
    service = new_service(token="secret")
    reader, writer = Peer(service, "c1"), Peer(service, "c2", token="secret")
    reply = reader.ask(request_)
    assert isinstance(reply, m.Failed)
    assert (reply.code, "token" in reply.text) == (-601, True)
    assert not isinstance(writer.ask(request_), m.Failed)
    assert reader.ask(m.Exists([])) == m.Existing(b"")


@pytest.mark.parametrize("token", ["wrong", "secre", "ÿ", "secret "])
def test_a_wrong_token_is_refused(token: str) -> None:
    peer = Peer(new_service(token="secret"))
    reply = peer.ask(m.Hello(1, 1, "client", "c1", token))
    assert isinstance(reply, m.Failed)
    assert (reply.code, peer.closed) == (-601, True)


def test_connections_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SESSIONS_MAX", 1)
    service = new_service()
    first, second = Peer(service, "c1"), Peer(service)
    assert second.pipe.closed == "aborted"
    second.hang_up()
    assert not first.closed
    first.hang_up()
    assert not Peer(service, "c2").closed


class Broken:
    """A state with a bug in one verb."""

    def __init__(self, service: Service, *, sound: bool) -> None:
        self._state = service.state
        self._sound = sound

    def handle(self, request: Any, peer: str, now: float) -> Any:
        if isinstance(request, m.Exists | m.Tick):
            raise ZeroDivisionError
        return self._state.handle(request, peer, now)

    def validate_state(self) -> None:
        assert self._sound


@pytest.mark.parametrize("sound", [True, False])
def test_a_bug_fails_one_request_and_is_logged(
    sound: bool, caplog: pytest.LogCaptureFixture
) -> None:
    service = new_service()
    client = Peer(service, "c1")
    service.state = Broken(service, sound=sound)  # type: ignore[assignment]
    reply = client.ask(m.Exists([]))
    assert isinstance(reply, m.Failed)
    assert reply.code == -1
    assert "Exists of client c1 at 192.0.2.1:4242" in caplog.text
    assert "ZeroDivisionError" in caplog.text
    assert ("not sound" in caplog.text) is not sound
    assert client.ask(m.GetSegments()) == m.Segments([])
    service.tick()
    assert service.counts.bugs == 2


def test_the_status_of_a_large_pool_is_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    service = new_service(clock)
    client = Peer(service, "c1")
    handle, asked = service.state.handle, []

    def slow(request: Any, peer: str, now: float) -> Any:
        asked.append(request)
        clock.now += 0.01
        return handle(request, peer, now)

    monkeypatch.setattr(service.state, "handle", slow)
    first = client.ask(m.GetStatus())
    assert client.ask(m.GetStatus()) == first
    clock.now += 0.01 * limits.STATUS_SHARE
    assert client.ask(m.GetStatus()) != first
    assert len(asked) == 2


def test_log_lines_that_peers_cause_are_limited() -> None:
    limit = LogLimit(3)
    record = logging.LogRecord("x", logging.WARNING, "x", 1, "x", (), None)
    record.created = 5.0
    assert [limit.filter(record) for _ in range(5)] == [True, True, True, False, False]
    record.created = 6.5
    assert limit.filter(record)


def test_metrics_tell_what_happened() -> None:
    service = new_service()
    node, client = Peer(service, "n1", "node"), Peer(service, "c1")
    mount(node)
    put(client, b"\0a", 5000)
    client.ask(m.MatchKeys([b"\0a", b"\0b"]))
    client.ask(m.Get([b"\0a"], 1, 5.0))
    Peer(service).session.data_received(b"GET / HTTP/1.1\r\n\r\n")
    text = render(registry_of(service)).decode()
    found = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert found["moonpool_objects",] == 1
    assert found["moonpool_leases",] == 1
    assert found["moonpool_used_bytes",] == 8192
    assert found["moonpool_clients",] == 1
    assert found["moonpool_segment_ready", "n1", "s"] == 1
    assert found["moonpool_requests_total", "PutStart"] == 1
    assert found["moonpool_request_seconds_count", "PutStart"] == 1
    assert found["moonpool_request_seconds_bucket", "PutStart", "+Inf"] == 1
    assert found["moonpool_refused_total",] == 1
    assert found["moonpool_match_hit_blocks_total",] == 1


def test_json_has_names_where_the_wire_has_places() -> None:
    status = m.Status(1, 2.0, 3, 4, 5, 6, [], {"puts": 7})
    plain = as_plain(status)
    assert isinstance(plain, dict)
    assert plain["epoch"] == 1
    assert plain["counters"] == {"puts": 7}
