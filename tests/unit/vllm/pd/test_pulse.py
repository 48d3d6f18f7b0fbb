"""Whether instances listen: three misses in a row, and nothing else, mean that one is gone."""

from __future__ import annotations

import socket

import pytest

from moonpool.vllm.pd import joins
from moonpool.vllm.pd.joins import PATIENCE_S, Joins
from moonpool.vllm.pd.params import address_of
from moonpool.vllm.pd.pulse import ADDRESSES_MAX, Address, Pulse, connects
from tests.integration.processes import eventually

HERE, THERE = ("127.0.0.1", 1), ("127.0.0.1", 2)


class Wire:
    """Who listens; a pulse without a thread."""

    def __init__(self) -> None:
        self.up = {HERE, THERE}
        self.tried: list[Address] = []
        self.pulse = Pulse(self.connects)
        self.pulse._stopped = True

    def connects(self, address: Address) -> bool:
        self.tried.append(address)
        return address in self.up


def test_three_misses_in_a_row_mean_gone() -> None:
    wire = Wire()
    wire.pulse.watch({HERE, THERE})
    wire.up = {THERE}
    wire.pulse.turn()
    wire.pulse.turn()
    assert wire.pulse.gone() == set()
    wire.up.add(HERE)
    wire.pulse.turn()
    wire.up.remove(HERE)
    for _ in range(3):
        wire.pulse.turn()
    assert wire.pulse.gone() == {HERE}
    wire.up.add(HERE)
    wire.pulse.turn()
    assert wire.pulse.gone() == set()


def test_what_is_not_watched_is_forgotten() -> None:
    wire = Wire()
    wire.up = set()
    wire.pulse.watch({HERE})
    for _ in range(3):
        wire.pulse.turn()
    assert wire.pulse.gone() == {HERE}
    wire.pulse.watch(set())
    assert wire.pulse.gone() == set()
    wire.pulse.watch({HERE})
    assert wire.pulse.gone() == set()


def test_few_are_watched_at_a_time() -> None:
    wire = Wire()
    wire.pulse.watch({("h", n) for n in range(1000)})
    wire.pulse.turn()
    assert len(wire.tried) == ADDRESSES_MAX


def test_a_real_port_and_one_that_is_closed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()[:2]
        pulse = Pulse(every_s=0.01)
        pulse.watch({address})
        assert connects(address)
    assert not connects(address)
    assert not connects(("no host", 1))
    assert not connects(("x" * 300, 1))
    eventually("it is gone", lambda: pulse.gone() == {address})
    pulse.close()
    pulse.close()
    assert pulse._thread is not None
    pulse._thread.join(10)
    assert not pulse._thread.is_alive()


def test_only_peers_that_take_long_are_looked_after() -> None:
    made = Joins()
    made.add(joins.make(1, "r", [1, 2], 1, 100.0, HERE), 0.0)
    made.add(joins.make(2, "s", [3, 4], 1, 100.0, None), 0.0)
    assert made.addresses(PATIENCE_S - 0.1) == set()
    assert made.addresses(PATIENCE_S) == {HERE}
    made.pool_ended({"r", "s"}, set())
    made.give_up({HERE}, 5.0)
    assert made.take(5.0).restarted == {"r"}
    assert made.addresses(50.0) == set()


@pytest.mark.parametrize(
    ("params", "address"),
    [
        ({"remote_host": "h", "remote_port": 5}, ("h", 5)),
        ({"remote_bootstrap_addr": "http://h:8998"}, ("h", 8998)),
        ({"remote_bootstrap_addr": "https://h"}, ("h", 443)),
        ({"remote_bootstrap_addr": "http://[::1]:7"}, ("::1", 7)),
        ({}, None),
    ],
)
def test_where_an_instance_listens(params: dict[str, object], address: object) -> None:
    assert address_of(params) == address
