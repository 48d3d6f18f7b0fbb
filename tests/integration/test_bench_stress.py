"""``moonpool bench stress``: every object once, every byte, on several hosts."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from moonpool import Store
from moonpool.bench.stress import BOTH, Plan, Share, plan_of, share_of
from moonpool.bench.stress_worker import Counts, Order, Worker
from moonpool.cli.app import app
from moonpool.errors import ConfigError
from tests.integration.networks import Hosts, needs_namespaces
from tests.integration.processes import (
    Master,
    Node,
    environment,
    eventually,
    pool,
    ready_segments,
)

RUN = CliRunner()
END_S = 100.0


def _plan(**more: Any) -> Plan:
    given = {
        "run": "test", "writers": 2, "readers": 2, "objects": 10, "nbytes": 1001, "batch": 4,
        "ahead": 0, "wait_s": 30.0, "limit_s": 0.0, "put_timeout_s": 5.0,
    }  # fmt: skip
    return plan_of(**(given | more))


def _work(plan: Plan, role: str, number: int, store: Store) -> Counts:
    told: list[Counts] = []
    Worker(Order(plan, role, number, ""), store, told.append).run()
    return told[-1]


@pytest.fixture
def store() -> Iterator[Store]:
    with Store.local("64MB") as found:
        yield found


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Master]:
    with pool(tmp_path_factory.mktemp("stress"), size="64MB") as (found, _):
        yield found


def _start(
    master: Master, *arguments: object, prefix: tuple[str, ...] = ()
) -> subprocess.Popen[str]:
    command = (sys.executable, "-m", "moonpool.cli", "bench", "stress")
    return subprocess.Popen(
        [*prefix, *command, "--master", master.address, *map(str, arguments)],
        env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def test_every_batch_is_read_by_one_reader() -> None:
    plan = _plan(writers=3, readers=2, objects=9, batch=2)
    read = [list(plan.read_by(reader)) for reader in range(2)]
    assert sorted(read[0] + read[1]) == [(w, b) for w in range(3) for b in range(5)]
    assert list(plan.numbers(4)) == [8]


def test_the_processes_of_all_hosts_are_those_of_the_run() -> None:
    plan = _plan(writers=3, readers=2)
    hosts = [share_of(BOTH, f"{n}/2").processes(plan) for n in (1, 2)]
    assert sorted(hosts[0] + hosts[1]) == sorted(Share(BOTH).processes(plan))
    assert [role for role, _ in share_of("write", "1/1").processes(plan)] == ["write"] * 3


def test_what_was_put_is_read_and_compared(store: Store) -> None:
    plan = _plan()
    for writer in range(2):
        put = _work(plan, "write", writer, store)
        assert (put.good, put.nbytes, put.failures, put.done) == (10, 10_010, {}, True)
    found = [_work(plan, "read", reader, store) for reader in range(2)]
    assert sum(each.good for each in found) == 20
    assert not any(each.failures or each.unread for each in found)


def test_other_bytes_and_missing_objects_count_once(store: Store) -> None:
    plan = _plan(writers=1, readers=1)
    _work(plan, "write", 0, store)
    store.remove(plan.key(0, 3), force=True)
    store.remove(plan.key(0, 7), force=True)
    value = bytearray(plan.nbytes)
    store.put(plan.key(0, 7), value)
    found = _work(plan, "read", 0, store)
    assert found.good == 8
    assert found.failures == {"NotFoundError (-704)": 1, "other bytes": 1}
    assert [text.partition(":")[0] for text in found.shown] == [
        "stress/test/0/3",
        "stress/test/0/7",
    ]


def test_one_wrong_byte_is_seen(store: Store) -> None:
    plan = _plan(writers=1, readers=1, objects=1)
    _work(plan, "write", 0, store)
    value = bytearray(store.get(plan.key(0, 0)))
    value[-1] ^= 1
    store.remove(plan.key(0, 0), force=True)
    store.put(plan.key(0, 0), value)
    assert _work(plan, "read", 0, store).failures == {"other bytes": 1}


def test_a_key_that_is_taken_is_a_failure_of_the_writer_only(store: Store) -> None:
    plan = _plan(writers=1, readers=1)
    store.put(plan.key(0, 2), b"somebody else's")
    put = _work(plan, "write", 0, store)
    assert (put.good, put.failures) == (9, {"AlreadyExistsError (-705)": 1})
    found = _work(plan, "read", 0, store)
    assert (found.good, found.unread, found.failures) == (9, 1, {})


def test_a_writer_that_does_not_come_is_waited_for_once(store: Store) -> None:
    plan = _plan(wait_s=0.2, readers=1)
    _work(plan, "write", 0, store)
    found = _work(plan, "read", 0, store)
    assert (found.good, found.unread, found.done) == (10, 10, True)


def test_a_writer_goes_no_further_ahead_than_it_may(store: Store) -> None:
    plan = _plan(writers=1, readers=1, ahead=1, wait_s=0.2)
    put = _work(plan, "write", 0, store)
    assert (put.good, put.done, put.ended) == (4, False, "its readers do not come after")


def test_roles_that_are_started_apart(master: Master, tmp_path: Path) -> None:
    """More than the pool holds goes through it: readers remove what they have read."""
    same = ("--run", "hosts", "--writers", 3, "--readers", 2, "--objects", 40, "--size", "1MB",
            "--batch", 4, "--ahead", 2, "--wait", END_S)  # fmt: skip
    # The readers take another way than the writers.
    roles = [("write", "1/2", "shm"), ("write", "2/2", "shm"), ("read", "1/1", "tcp")]
    files = [tmp_path / f"{n}.json" for n in range(3)]
    hosts = [
        _start(master, *same, "--role", role, "--part", part, "--transport", way, "--json", file)
        for (role, part, way), file in zip(roles, files, strict=True)
    ]
    said = [host.communicate(timeout=END_S) for host in hosts]
    assert [host.returncode for host in hosts] == [0, 0, 0], said
    found = [json.loads(file.read_text()) for file in files]
    assert [each["write"]["processes"] for each in found] == [2, 1, 0]
    assert sum(each["write"]["objects"] for each in found) == 120
    assert found[2]["read"]["objects"] == 120
    assert found[2]["read"]["bytes"] == 120 << 20
    with Store.connect(master.address) as probe:
        assert not list(probe.list("stress/hosts/"))


@needs_namespaces
def test_hosts_with_a_network_between_them(tmp_path: Path) -> None:
    """Writers, readers and the pool are each on a host of their own."""
    same = ("--run", "far", "--objects", 20, "--size", "256KB", "--batch", 4, "--wait", END_S)
    with Hosts(3) as hosts, Master(tmp_path, host=hosts.here) as master:
        node = Node(tmp_path, master, "far", host=hosts.address(0))
        node.prefix = hosts.command(0)
        with node, Store.connect(master.address, name="probe") as probe:
            eventually("the node is there", lambda: ready_segments(probe) == 1, END_S)
            files = [tmp_path / f"{role}.json" for role in ("write", "read")]
            roles = [
                _start(
                    master, *same, "--role", file.stem, "--transport", "tcp", "--json", file,
                    prefix=hosts.command(place),
                )
                for place, file in enumerate(files, start=1)
            ]  # fmt: skip
            said = [role.communicate(timeout=END_S) for role in roles]
    assert [role.returncode for role in roles] == [0, 0], said
    found = [json.loads(file.read_text()) for file in files]
    assert found[0]["write"]["objects"] == found[1]["read"]["objects"] == 40
    assert found[1]["read"]["bytes"] == 40 * (256 << 10)


def test_a_writer_that_is_killed_is_told_of(master: Master, tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    run = ("--run", "killed", "--objects", 10**6, "--size", "64KB", "--wait", 2, "--limit", 15)
    process = _start(master, *run, "--json", file)
    try:
        with Store.connect(master.address) as probe:
            eventually("it writes", lambda: list(probe.list("stress/killed/0/")), END_S)
        os.kill(_worker(process.pid, b"stress_worker"), signal.SIGKILL)
        out, err = process.communicate(timeout=END_S)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
    assert process.returncode == 1, (out, err)
    found = json.loads(file.read_text())
    ends = list((found["write"]["ended"] | found["read"]["ended"]).values())
    assert sum("exit code -9" in each for each in ends) == 1
    assert not found["well"]
    assert not found["write"]["failures"]
    assert not found["read"]["failures"]


def _worker(parent: int, word: bytes) -> int:
    """Return the id of one of a process's children."""
    for children in Path(f"/proc/{parent}/task").glob("*/children"):
        for pid in children.read_text().split():
            if word in Path(f"/proc/{pid}/cmdline").read_bytes():
                return int(pid)
    raise AssertionError("no worker")


def test_ctrl_c_says_what_was_done(master: Master, tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    process = _start(master, "--run", "cut", "--objects", 10**6, "--size", "64KB", "--json", file)
    try:
        with Store.connect(master.address) as probe:
            eventually("it writes", lambda: list(probe.list("stress/cut/")), END_S)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=END_S)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
    assert process.returncode == 130, (out, err)
    found = json.loads(file.read_text())
    assert found["ended"] == "interrupted"
    assert not found["well"]
    assert found["write"]["objects"] > 0
    assert not found["write"]["failures"]
    assert not found["read"]["failures"]
    assert "interrupted" in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--role", "watch"], "role: 'watch'"),
        (["--role", "read"], "run: needed"),
        (["--part", "3/2", "--run", "x"], "part: '3/2'"),
        (["--run", "a/b"], "run: 'a/b'"),
        (["--size", "big"], "size: 'big'"),
        (["--size", "1GB", "--batch", "1000"], "too much for a call"),
        (["--json", "/nowhere/file"], "json: /nowhere/file"),
        (["--transport", "pigeon"], "pigeon"),
    ],
)
def test_bad_input_is_one_line(arguments: list[str], said: str) -> None:
    result = RUN.invoke(app, ["bench", "stress", "--master", "127.0.0.1:1", *arguments])
    assert result.exit_code == 2
    assert said in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_a_name_is_made_up_where_none_is_given() -> None:
    assert _plan(run="").run != _plan(run="").run
    with pytest.raises(ConfigError, match="run:"):
        _plan(run="x" * 65)
