"""The engine's end of the mover against processes that do not behave."""

from __future__ import annotations

import socket
import sys
import textwrap
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from moonpool.errors import ProtocolError
from moonpool.gpu import GpuError
from moonpool.vllm import mover_client, settings
from moonpool.vllm import mover_wire as wire
from moonpool.vllm.jobs import LoadDone, LoadJob, SaveDone, SaveJob
from moonpool.vllm.mover_client import Mover
from moonpool.vllm.stats import Tally

HEAD = """
import socket, sys, time
import msgspec
from moonpool.protocol.framing import FrameDecoder
from moonpool.vllm import mover_wire as wire
from moonpool.vllm.jobs import LoadDone, SaveDone
sock = socket.socket(fileno=int(sys.argv[1]))
frames = FrameDecoder()
def receive():
    found = []
    while not found:
        data = sock.recv(1 << 20)
        if not data:
            sys.exit(0)
        found = [wire.decode(frame) for frame in frames.feed(data)]
    return found
assert isinstance(receive()[0], wire.Setup)
"""
READY = "sock.sendall(wire.encode(wire.Ready()))\n"


def setup() -> wire.Setup:
    chosen = settings.read({"load_timeout_s": 0.2, "save_timeout_s": 0.2}, "kv_both", {})
    one = np.ones(1, "<u8").tobytes()
    return wire.Setup(chosen, "test", [wire.Table(one, one, one, b"", 1, 1)], [], 1, [])


def make(script: str, **options: Any) -> Mover:
    command = (sys.executable, "-c", HEAD + textwrap.dedent(script))
    return Mover(setup(), Tally(), command=command, **options)


def load(generation: int = 1) -> LoadJob:
    ends = np.array([2], np.int32)
    ids = np.array([5, 6], np.int32)
    return LoadJob("r", generation, b"n" * 16, b"d" * 16, ends - 2, ends, ids, 0)


def save(job_id: int = 1) -> SaveJob:
    ids = np.array([5, 6], np.int32)
    return SaveJob(job_id, b"n" * 16, b"d" * 16, bytes(16), np.array([2], np.int32), ids)


def until(mover: Mover, check: Callable[[list[LoadDone], list[SaveDone]], object]) -> Any:
    loads: list[LoadDone] = []
    saves: list[SaveDone] = []
    deadline = time.monotonic() + 20
    while not check(loads, saves):
        assert time.monotonic() < deadline, "waited in vain"
        more = mover.take()
        loads += more[0]
        saves += more[1]
        time.sleep(0.002)
    return loads, saves


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("sys.exit(3)", "closed its socket"),
        ("sock.sendall(wire.encode(wire.Ready('no such GPU')))", "no such GPU"),
        ("sock.sendall(b'HTTP/1.1 200 OK' * 10)", "frame"),
        ("sock.sendall(bytes([1, 0, 0, 0, 7]))", "between the engine and its mover"),
        ("time.sleep(60)", "not ready within"),
    ],
)
def test_one_that_does_not_get_ready_is_an_error_and_is_gone(script: str, words: str) -> None:
    mover = make(script)
    with pytest.raises(GpuError, match=words):
        mover.start(5.0 if "sleep" not in script else 1.5)
    assert mover.pid == 0
    assert not mover.ready


@pytest.mark.parametrize(
    "script",
    [
        READY + "receive(); sys.exit(0)",
        READY + "receive(); sock.sendall(bytes(64))",
        READY + "receive(); sock.sendall(wire.encode(wire.Ready())[:-1])\nsys.exit(1)",
        READY + "receive(); time.sleep(60)",
    ],
)
def test_its_jobs_end_as_failed_once(script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mover_client, "OVERDUE_S", 0.1)
    mover = make(script)
    mover.start()
    mover.load([load()], None)
    mover.save([save()], None)
    loads, saves = until(mover, lambda loads, saves: loads and saves)
    assert loads == [LoadDone("r", 1, 0)]
    assert [done.job_id for done in saves] == [1]
    assert all(code < 0 for code in saves[0].codes)
    assert not mover.ready
    # While it is away jobs fail at once.
    mover.load([load(2)], None)
    assert mover.take()[0] == [LoadDone("r", 2, 0)]
    mover.close()
    mover.close()


def test_what_nobody_asked_for_is_ignored() -> None:
    mover = make(
        """
        sock.sendall(wire.encode(wire.Ready()))
        receive()
        done = [LoadDone("r", 1, 2), LoadDone("r", 1, 2), LoadDone("x", 99, 2)]
        sock.sendall(wire.encode(wire.Ended(done, [SaveDone(7, (0,))], {"loads": 1})))
        sock.sendall(wire.encode(wire.Ready()))
        receive()
        """
    )
    mover.start()
    mover.load([load()], None)
    loads, saves = until(mover, lambda loads, _: loads)
    assert (loads, saves) == ([LoadDone("r", 1, 2)], [])
    assert mover.ready
    mover.close()


def test_one_that_takes_no_more_jobs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mover_client, "OUTBOX_BYTES_MAX", 1 << 16)
    mover = make(READY + "time.sleep(60)")
    mover.start()
    ids = np.zeros(1 << 20, np.int32)
    for generation in range(1, 6):
        mover.load([_wide(generation, ids)], None)
    loads, _ = until(mover, lambda loads, _: len(loads) == 5)
    assert {done.good_blocks for done in loads} == {0}
    mover.close()


def _wide(generation: int, ids: Any) -> LoadJob:
    ends = np.array([len(ids)], np.int32)
    return LoadJob("r", generation, b"n" * 16, b"d" * 16, ends * 0, ends, ids, 0)


def test_addresses_outside_the_engines_regions_are_refused() -> None:
    regions = [wire.Region(1000, 100, {}), wire.Region(5000, 10, {})]
    found = wire.moved(np.array([5003, 1000, 1099], np.uint64), regions, [70, 20])
    assert found.tolist() == [23, 70, 169]
    for wrong in (999, 1100, 5010):
        with pytest.raises(ProtocolError, match="outside"):
            wire.moved(np.array([1000, wrong], np.uint64), regions, [70, 20])


def test_jobs_survive_the_way() -> None:
    one = wire.decode(
        wire.encode(wire.Begin([wire.load_of(load(3))], [wire.save_of(save(4))], 5))[4:]
    )
    assert isinstance(one, wire.Begin)
    there, back = load(3), wire.load_job(one.loads[0])
    for name in ("request_id", "generation", "namespace", "names", "first_block"):
        assert getattr(there, name) == getattr(back, name)
    for name in ("starts", "ends", "block_ids"):
        assert getattr(there, name).tolist() == getattr(back, name).tolist()
    kept = wire.save_job(one.saves[0])
    assert (kept.job_id, kept.counts.tolist(), kept.block_ids.tolist()) == (4, [2], [5, 6])
    assert one.mark == 5


def test_the_socket_does_not_leak() -> None:
    before = socket.socket()
    number = before.fileno()
    before.close()
    for _ in range(3):
        mover = make(READY + "receive()")
        mover.start()
        mover.close()
    after = socket.socket()
    assert after.fileno() == number
    after.close()
