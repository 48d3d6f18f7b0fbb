"""What programs notice around the calls: leases of lookups, processes that end, the environment."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from moonpool import Store
from moonpool.compat.env import exports
from tests.compat.beds import SEGMENT, Bed, moonpool_bed
from tests.integration.processes import environment, eventually

LEASE_MS = 600_000


@pytest.fixture
def ours(tmp_path: Path) -> Iterator[Bed]:
    with moonpool_bed(tmp_path, LEASE_MS) as bed:
        yield bed


def leases(store: Store, key: str) -> int:
    return store.stat(key).leases


def test_only_lookups_of_the_mooncake_api_lease(ours: Bed) -> None:
    owner = ours.start("owner", SEGMENT, "")
    with Store.connect(ours.master) as store:
        store.put("key", b"value")
        assert store.exists("key")
        assert store.exists_batch(["key"]) == [True]
        assert leases(store, "key") == 0
        worker = ours.start("asking", 0, "")
        worker.run("plain.is_exist", key="key")
        assert leases(store, "key") == 1
        worker.close()
        eventually("the lease ends with its client", lambda: leases(store, "key") == 0)
        quiet = {**ours.env, "MOONPOOL_COMPAT_EXIST_LEASE": "0"}
        ours.env = quiet
        other = ours.start("quiet", 0, "")
        other.run("plain.is_exist", key="key")
        assert leases(store, "key") == 0
        other.close()
    owner.close()


def test_a_killed_program_takes_its_segment_along(ours: Bed) -> None:
    owner = ours.start("owner", SEGMENT, "")
    with Store.connect(ours.master) as store:
        store.put("key", b"value")
        assert len(store.status().segments) == 1
        os.kill(owner.process.pid, signal.SIGKILL)
        eventually("its segment is gone", lambda: not store.status().segments, 30.0)
        assert not store.exists("key")
    owner.close()


def test_a_master_that_is_killed_and_comes_back_has_the_objects(ours: Bed) -> None:
    owner = ours.start("owner", SEGMENT, "")
    worker = ours.start("asking", 0, "")
    master = ours.daemon
    assert master is not None
    assert worker.run("plain.state") == {"put": 0, "get": True, "exists": 1, "health": 0}
    port = master.ready["port"]
    master.process.kill()
    master.process.wait()
    found = worker.run("plain.state")
    assert (found["put"], found["get"], found["health"]) == (-900, False, 2)
    assert found["exists"] == -900
    master.keys["port"] = port
    master.start()

    def is_back() -> bool:
        return bool(worker.run("plain.state")["get"])

    eventually("the object that was put before is read again", is_back, 60.0)
    worker.close()
    owner.close()


def test_a_stopped_program_still_serves(ours: Bed) -> None:
    owner = ours.start("owner", SEGMENT, "")
    with Store.connect(ours.master, transports=("tcp",)) as store:
        store.put("key", b"value")
        os.kill(owner.process.pid, signal.SIGSTOP)
        try:
            assert store.get("key") == b"value"
            assert store.put("other", b"value")
        finally:
            os.kill(owner.process.pid, signal.SIGCONT)
    owner.close()


def test_a_program_needs_no_more_than_the_environment(ours: Bed, tmp_path: Path) -> None:
    """An unmodified program, found by name, in a folder of its own."""
    program = tmp_path / "program.py"
    program.write_text(
        "import sys\n"
        "from mooncake.mooncake_config import MooncakeConfig\n"
        "from mooncake.store import MooncakeDistributedStore, ReplicateConfig\n"
        "config = MooncakeConfig.load_from_env()\n"
        "store = MooncakeDistributedStore()\n"
        "code = store.setup(config.local_hostname, config.metadata_server,\n"
        "    config.global_segment_size, config.local_buffer_size, config.protocol,\n"
        "    config.device_name, config.master_server_address)\n"
        "assert code == 0, code\n"
        "assert store.put('key', b'value', ReplicateConfig()) == 0\n"
        "assert store.get('key') == b'value'\n"
        "assert store.close() == 0\n"
        "print('done')\n"
    )
    env = {
        **environment(),
        **exports(),
        "MOONCAKE_MASTER": ours.master,
        "MOONCAKE_GLOBAL_SEGMENT_SIZE": "4GB",
        "MOONCAKE_LOCAL_BUFFER_SIZE": "64mb",
        "MOONCAKE_LOCAL_HOSTNAME": "127.0.0.1",
    }
    done = subprocess.run(
        [sys.executable, str(program)],
        env=env,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


def test_the_exports_are_what_a_shell_evaluates() -> None:
    shown = subprocess.run(
        [sys.executable, "-m", "moonpool.cli", "compat", "env"],
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    module = "import mooncake.store as s; print(s.MooncakeDistributedStore.__module__)"
    script = f"{shown.stdout}\ncommand -v mooncake_master; {sys.executable} -c '{module}'"
    asked = subprocess.run(
        ["sh", "-c", script],
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    where, found = asked.stdout.split()
    assert where.endswith("compat/shim/bin/mooncake_master")
    assert found == "moonpool.compat.store"
