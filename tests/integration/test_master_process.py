"""The master as a process: start, stop, what it says over HTTP, and bad configuration."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from moonpool import (
    ConfigError,
    DeadlineError,
    IllegalClientError,
    InvalidArgumentError,
    MasterUnreachableError,
    MoonpoolError,
    NoSpaceError,
    ProtocolError,
    Store,
)
from moonpool.client.channel import SocketChannel
from moonpool.core import messages as m
from moonpool.protocol.codec import decode_reply, encode
from moonpool.protocol.framing import FrameDecoder
from tests.integration.processes import Master, environment, eventually, freeze


@pytest.fixture
def master(tmp_path: Path) -> Iterator[Master]:
    with Master(tmp_path) as started:
        yield started


def fail(**keys: object) -> str:
    """Run a master that cannot start; return the one line it says."""
    done = subprocess.run(
        [sys.executable, "-m", "moonpool.master"] + [f"{k}={v}" for k, v in keys.items()],
        capture_output=True,
        text=True,
        timeout=30,
        env=environment(),
        check=False,
    )
    assert done.returncode == 2, done.stderr
    (line,) = done.stderr.splitlines()
    return line


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_cleanly(master: Master, number: int) -> None:
    with Store.connect(master.address) as store:
        assert store.status().objects == 0
        assert master.end(number) == 0
    assert "Traceback" not in master.text()


@pytest.mark.parametrize("key", ["port", "http_port"])
def test_a_port_in_use_is_one_line_with_the_key(master: Master, key: str) -> None:
    taken = master.ready[key]
    line = fail(**({"port": 0, "http_port": 0} | {key: taken}))
    assert f"{key}: {taken} on 127.0.0.1 is in use; allowed:" in line


def test_bad_configuration_is_one_line_with_key_and_allowed_values() -> None:
    assert "port: 'x' (from --port) is not allowed; allowed: 0 to 65535" in fail(port="x")
    assert "did you mean watermark_high?" in fail(watermark_hihg=1)
    assert "host: '192.0.2.1' cannot be listened on" in fail(host="192.0.2.1", port=0)
    assert "host: 'no.such.host.invalid'" in fail(host="no.such.host.invalid", port=0)


def test_http(master: Master) -> None:
    with Store.connect(master.address) as store:
        health = json.loads(master.http("/health"))
        assert (health["status"], health["pool"]) == ("ok", "empty")
        status = json.loads(master.http("/status"))
        assert status["clients"] == 1
        assert status["epoch"] == health["epoch"] == store.status().epoch
    metrics = master.http("/metrics").decode()
    assert 'moonpool_requests_total{kind="GetStatus"} 1.0' in metrics


def test_a_new_master_on_the_port_has_a_larger_epoch(master: Master) -> None:
    epochs = []
    for _ in range(2):
        with Store.connect(master.address) as store:
            epochs.append(store.status().epoch)
        master.kill()
        master.start()
    with Store.connect(master.address) as store:
        epochs.append(store.status().epoch)
    assert epochs == sorted(set(epochs))


def test_without_nodes_nothing_can_be_put_and_nothing_is_found(master: Master) -> None:
    with Store.connect(master.address, put_timeout_s=0.3) as store:
        with pytest.raises(NoSpaceError):
            store.put("a", b"x")
        assert store.get_batch(["a"]) == [None]
        assert store.match_prefix(["a"]) == 0


def test_no_master_is_told_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(MasterUnreachableError, match="Connection refused"):
        Store.connect(f"127.0.0.1:{port}")
    eventually("no thread is left", lambda: "moonpool-look" not in thread_names())


def test_a_store_that_does_not_wait_joins_when_the_master_comes(tmp_path: Path) -> None:
    master = Master(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as server:
        master.keys["port"] = server.getsockname()[1]
    with Store.connect(f"127.0.0.1:{master.keys['port']}", wait=False) as store:
        began = time.monotonic()
        for _ in range(1000):
            with pytest.raises(MasterUnreachableError):
                store.match_prefix(["a"])
        assert time.monotonic() - began < 5.0
        with master:
            eventually("the store has joined", lambda: answers(store))


def thread_names() -> set[str]:
    return {thread.name for thread in threading.enumerate()}


def answers(store: Store) -> bool:
    try:
        return store.match_prefix(["a"]) == 0
    except MasterUnreachableError:
        return False


def test_a_master_that_comes_back_is_found_by_open_stores(master: Master) -> None:
    with Store.connect(master.address) as store:
        master.kill()
        for _ in range(3):
            with pytest.raises(MasterUnreachableError):
                store.exists("a")
        master.start()
        eventually("the store is back", lambda: answers(store))
        assert not store.exists("a")


def test_a_restart_between_two_calls_is_not_noticed_by_lookups(master: Master) -> None:
    with Store.connect(master.address) as store:
        assert not store.exists("a")
        master.kill()
        master.start()
        assert not store.exists("a")


def test_a_master_that_does_not_answer_costs_one_deadline(master: Master) -> None:
    with Store.connect(master.address, timeout_s=0.5) as store:
        freeze(master.process.pid)
        try:
            with pytest.raises(DeadlineError):
                store.status()
            began = time.monotonic()
            for _ in range(100):
                with pytest.raises(MasterUnreachableError):
                    store.exists("a")
            assert time.monotonic() - began < 2.0
        finally:
            master.process.send_signal(signal.SIGCONT)
        eventually("the store is back", lambda: answers(store))


def test_a_token_guards_changes(tmp_path: Path) -> None:
    with Master(tmp_path, token="secret") as master:
        with Store.connect(master.address, token="") as store:
            assert not store.exists("a")
            with pytest.raises(IllegalClientError, match="token"):
                store.put("a", b"x")
            with pytest.raises(IllegalClientError, match="token"):
                store.remove_all()
        with pytest.raises(IllegalClientError, match="token"):
            Store.connect(master.address, token="wrong")
        with Store.connect(master.address, token="secret") as store:
            assert store.remove_all() == 0


def test_one_way_requests_get_no_answer(master: Master) -> None:
    address = ("127.0.0.1", master.ready["port"])
    with socket.create_connection(address, 5) as sock:
        sock.sendall(encode(1, m.Hello(1, 1, "client", "c1")))
        sock.sendall(encode(0, m.Release([1])) + encode(3, m.Exists([b"\0a"])))
        sock.shutdown(socket.SHUT_WR)
        received = b""
        while part := sock.recv(4096):
            received += part
    welcome, answer = (decode_reply(frame) for frame in FrameDecoder().feed(received))
    assert isinstance(welcome[1], m.Welcome)
    assert welcome[1].epoch == json.loads(master.http("/health"))["epoch"]
    assert answer == (3, m.Existing(b"\0"))


def test_more_threads_than_connections_wait_for_their_turn(master: Master) -> None:
    channel = SocketChannel(("127.0.0.1", master.ready["port"]), "c1", connections=1)
    taken = channel._take(1.0)
    with pytest.raises(DeadlineError, match="in use"):
        channel.call(m.GetSegments(), 0.05)
    channel._give(taken)
    assert channel.call(m.GetSegments()) == m.Segments([])
    channel.close()


def test_what_answers_like_no_master_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        channel = SocketChannel(server.getsockname(), "c1", timeout_s=5.0)
        client = socket.create_connection(server.getsockname())
        accepted, _ = server.accept()
        with client, accepted:
            pass
        channel_error: list[BaseException] = []

        def connect() -> None:
            try:
                channel.connect()
            except ProtocolError as error:
                channel_error.append(error)

        thread = threading.Thread(target=connect)
        thread.start()
        peer, _ = server.accept()
        with peer:
            peer.recv(4096)
            peer.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            thread.join(10)
        channel.close()
    assert len(channel_error) == 1


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"transports": ("rdma",)}, "transports: .*shm, tcp"),
        ({"transports": ()}, "transports"),
        ({"timeout_s": 0}, "timeout_s: 0"),
        ({"put_timeout_s": -1}, "put_timeout_s: -1"),
        ({"lease_s": float("inf")}, "lease_s: inf"),
        ({"connections": 0}, "connections: 0 .*1 to 64"),
        ({"name": "a\nb"}, "a name of 3 characters"),
        ({"name": "x" * 200}, "a name of 200 characters"),
    ],
)
def test_bad_options_are_refused_before_anything_is_connected(
    options: dict[str, Any], part: str
) -> None:
    with pytest.raises((ConfigError, InvalidArgumentError), match=part):
        Store.connect("127.0.0.1:1", **options)


@pytest.mark.parametrize("address", ["", "host", "host:0", "etcd://h:1", "h:99999"])
def test_bad_addresses_are_refused(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOONPOOL_MASTER", "also bad:x")
    with pytest.raises(MoonpoolError):
        Store.connect(address)
