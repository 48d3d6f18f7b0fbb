"""Hostile bytes to the listening master: 10,000 connections, while others go on being served."""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from moonpool.client.channel import SocketChannel
from moonpool.core import messages as m
from moonpool.protocol.codec import encode
from moonpool.protocol.framing import frame
from tests.integration.processes import Master, eventually
from tests.unit.protocol.mutants import mutant, noise

EXAMPLES = 500
INPUTS = 20
ROLES = ("client", "node", "tool")


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Master]:
    with Master(tmp_path_factory.mktemp("fuzz")) as started:
        yield started


class Witness(threading.Thread):
    """A well-behaved client that asks all the time; ``failed`` is what went wrong."""

    def __init__(self, port: int) -> None:
        super().__init__()
        self.channel = SocketChannel(("127.0.0.1", port), "witness", timeout_s=5.0)
        self.answered = 0
        self.failed: Exception | None = None
        self._ending = threading.Event()

    def run(self) -> None:
        while not self._ending.is_set():
            try:
                reply = self.channel.call(m.MatchKeys([b"\0never put"]))
                assert isinstance(reply, m.Matched)
            except Exception as error:  # noqa: BLE001
                self.failed = error
                return
            self.answered += 1

    def stop(self) -> None:
        self._ending.set()
        self.join(10)
        self.channel.close()


@pytest.fixture(scope="module")
def witness(master: Master) -> Iterator[Witness]:
    asking = Witness(master.ready["port"])
    asking.start()
    yield asking
    asking.stop()


def throw(port: int, data: bytes) -> None:
    """Send bytes on a connection of their own and wait until the master has closed it."""
    with socket.create_connection(("127.0.0.1", port), 10) as sock:
        try:
            sock.sendall(data)
            sock.shutdown(socket.SHUT_WR)
            while sock.recv(65_536):
                pass
        except ConnectionError:
            pass


def hostile(chance: random.Random) -> bytes:
    """Return what one connection sends: noise, or damaged requests with or without a greeting."""
    if chance.random() < 0.1:
        return noise(chance)
    data = b""
    if chance.random() < 0.8:
        name = f"fuzz-{chance.randrange(50)}"
        data = encode(1, m.Hello(1, 1, chance.choice(ROLES), name))
    for _ in range(chance.randrange(1, 4)):
        data += frame(mutant(chance))
    return data if chance.random() < 0.9 else data[: chance.randrange(len(data))]


@settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(chance=st.randoms(use_true_random=False))
def test_hostile_bytes_end_their_own_connection_only(
    master: Master, witness: Witness, chance: random.Random
) -> None:
    answered = witness.answered
    for _ in range(INPUTS):
        throw(master.ready["port"], hostile(chance))
    eventually("the witness is answered", lambda: witness.failed or witness.answered > answered)
    assert witness.failed is None
    assert master.process.poll() is None


def test_no_hostile_request_has_hit_a_bug(master: Master, witness: Witness) -> None:
    metrics = master.http("/metrics").decode()
    assert "moonpool_bugs_total 0.0" in metrics
    (refused,) = [line for line in metrics.splitlines() if line.startswith("moonpool_refused_t")]
    assert float(refused.split()[1]) > EXAMPLES
    assert "127.0.0.1:" in master.text()
    assert "Traceback" not in master.text()
