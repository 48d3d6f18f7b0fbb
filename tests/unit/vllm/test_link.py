from __future__ import annotations

import logging
import threading
from collections.abc import Iterator

import pytest

from moonpool.errors import (
    BufferAlreadyRegisteredError,
    MasterUnreachableError,
    TransferError,
)
from moonpool.vllm.courier import Courier
from moonpool.vllm.link import Link, Pool
from moonpool.vllm.log import logger
from tests.unit.vllm.fakes import Clock, FakePool


class Log(logging.Handler):
    """What the connector says."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(f"{record.levelname} {record.getMessage()}")


@pytest.fixture
def log() -> Iterator[list[str]]:
    handler, level = Log(), logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    yield handler.lines
    logger.removeHandler(handler)
    logger.setLevel(level)


class Opener:
    """Fails as often as it is told to."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.pools: list[FakePool] = []

    def __call__(self) -> Pool:
        if self.errors:
            raise self.errors.pop(0)
        self.pools.append(FakePool())
        return self.pools[-1]


def wait_for(link: Link) -> None:
    for _ in range(5000):
        if link.get() is not None:
            return
        threading.Event().wait(0.002)
    raise AssertionError("never opened")


def test_without_a_master_it_warns_once_and_joins_when_it_comes(
    log: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("moonpool.vllm.link.RETRY_S", (0.001,))
    opener = Opener(*(MasterUnreachableError("refused") for _ in range(5)))
    link = Link(opener, "host:1")
    assert link.get() is None
    link.start()
    wait_for(link)
    assert [line.split()[0] for line in log] == ["WARNING", "INFO"]
    assert "host:1" in log[0]
    assert link.connected
    link.close()
    link.close()
    assert opener.pools[0].closed
    assert link.get() is None


def test_a_pool_that_refuses_our_memory_is_not_used(
    log: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weakness 18: it is not logged and then used all the same."""
    monkeypatch.setattr("moonpool.vllm.link.RETRY_S", (0.001,))
    opener, errors = Opener(), [BufferAlreadyRegisteredError("taken")]

    def prepare(pool: Pool) -> None:
        if errors:
            raise errors.pop()

    link = Link(opener, "host:1", prepare)
    link.start()
    wait_for(link)
    assert [pool.closed for pool in opener.pools] == [True, False]
    assert "taken" in log[0]
    link.close()


def test_a_master_out_of_reach_is_left_alone_longer_and_longer(log: list[str]) -> None:
    clock = Clock()
    link = Link(Opener(), "host:1", clock=clock)
    assert link._open_once() is None
    for rest in (0.5, 1.0, 2.0, 4.0, 4.0):
        link.failed(MasterUnreachableError("gone"))
        assert link.get() is None
        assert not link.connected
        clock.now += rest - 0.01
        assert link.get() is None
        clock.now += 0.02
        assert link.get() is not None
    link.worked()
    assert link.connected
    assert [line.split()[0] for line in log] == ["WARNING", "INFO"]
    link.close()


def test_other_errors_are_told_once_each(log: list[str]) -> None:
    link = Link(Opener(), "host:1")
    assert link._open_once() is None
    for _ in range(3):
        link.failed(TransferError("torn"))
    assert link.get() is not None
    assert len(log) == 1
    link.close()


def test_a_pool_opened_after_the_end_is_closed() -> None:
    opener = Opener()
    link = Link(opener, "host:1")
    link.close()
    assert link._open_once() is None
    assert opener.pools[0].closed


def test_a_courier_runs_errands_and_outlives_their_errors(log: list[str]) -> None:
    courier, done = Courier(threads=1), threading.Event()

    def broken() -> None:
        raise ValueError("a bug")

    assert courier.submit(broken)
    assert courier.submit(done.set)
    assert done.wait(10)
    assert any("errand" in line for line in log)
    courier.close()
    courier.close()
    assert not courier.submit(done.set)


def test_a_couriers_queue_is_bounded() -> None:
    courier, gate = Courier(threads=1, limit=2), threading.Event()
    started = threading.Event()

    def wait() -> None:
        started.set()
        gate.wait(10)

    assert courier.submit(wait)
    assert started.wait(10)
    assert courier.submit(gate.set)
    assert courier.submit(gate.set)
    assert not courier.submit(gate.set)
    gate.set()
    courier.close()


def test_memory_of_digests_is_bounded() -> None:
    from moonpool.vllm.memory import Failed, Known

    known = Known(limit=3)
    known.add([bytes([n]) for n in range(5)], 0.0)
    assert len(known) == 3
    assert b"\x00" not in known
    failed = Failed(keep_s=10.0, limit=2)
    for n in range(4):
        failed.add(bytes([n]), 0.0)
    assert len(failed) == 2
    assert failed.has(b"\x03", 9.0)
    assert not failed.has(b"\x03", 10.0)
    failed.forget([b"\x02"])
    assert len(failed) == 0


def test_what_nobody_expected_does_not_end_the_tries(log: list[str]) -> None:
    opener = Opener(RuntimeError("a bug"), RuntimeError("again"))
    link = Link(opener, "here")
    link.start()
    wait_for(link)
    assert [line for line in log if line.startswith("ERROR")] == [
        "ERROR moonpool: opening the pool failed"
    ]
    link.close()


def test_a_preparation_that_goes_wrong_is_tried_again(log: list[str]) -> None:
    faults = [KeyError("a bug")]

    def prepare(pool: Pool) -> None:
        if faults:
            raise faults.pop()

    opener = Opener()
    link = Link(opener, "here", prepare)
    link.start()
    wait_for(link)
    assert [pool.closed for pool in opener.pools] == [True, False]
    link.close()
