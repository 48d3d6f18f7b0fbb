"""Mooncake's commands, run as its users run them."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import aiohttp
import pytest

from moonpool.compat.dummy import ask_client
from moonpool.compat.store import MooncakeDistributedStore
from moonpool.errors import MasterUnreachableError
from tests.integration.mooncake_shim import (
    SHIM,
    MooncakeMaster,
    answers,
    free_port,
    program,
    running,
    shim_environment,
)
from tests.integration.processes import eventually
from tests.integration.test_router_process import Engine
from tests.unit.router.upstream import serving_app

MIB = 1 << 20


def store_on(master: str, segment: int = 0) -> MooncakeDistributedStore:
    store = MooncakeDistributedStore()
    assert store.setup("127.0.0.1", "P2PHANDSHAKE", segment, MIB, "tcp", "", master) == 0
    return store


def test_a_lease_lasts_as_long_as_the_flag_says(tmp_path: Path) -> None:
    with MooncakeMaster(tmp_path, "--default_kv_lease_ttl=1500") as master:
        store = store_on(master.address, 32 * MIB)
        try:
            assert store.put("a", b"x" * 100) == 0
            assert store.put("b", b"x" * 100) == 0
            # A put leases nothing; a read and a question do.
            assert store.remove("b") == 0
            started = time.monotonic()
            assert store.get("a") == b"x" * 100
            code = store.remove("a")
            assert code == -706 or time.monotonic() - started > 1.5
            eventually("the lease ends", lambda: store.remove("a") == 0, 60)
            assert time.monotonic() - started >= 1.4
            assert "master_key_count 0\n" in master.page("/metrics")
            assert master.page("/get_all_segments").strip() == store.get_hostname()
        finally:
            store.close()
        eventually("the segment is gone", lambda: not master.page("/get_all_segments").strip(), 30)


def test_soft_pinned_objects_stay_while_others_can_go(tmp_path: Path) -> None:
    code = """
import sys
from mooncake.store import MooncakeDistributedStore, ReplicateConfig, SoftPinAction
store = MooncakeDistributedStore()
assert store.setup("127.0.0.1", "P2PHANDSHAKE", 64 << 20, 16 << 20, "tcp", "", sys.argv[1]) == 0
soft = ReplicateConfig()
soft.soft_pin_action = SoftPinAction.ENABLE
assert store.put("soft", b"s" * (4 << 20), soft) == 0
codes = [store.put(f"k{i}", b"x" * (4 << 20)) for i in range(40)]
there = sum(store.is_exist(f"k{i}") for i in range(40))
print(store.is_exist("soft"), codes.count(0) >= 20, 5 <= there <= 15)
store.close()
"""
    flags = ("--default_kv_lease_ttl=1ms", "--eviction_high_watermark_ratio=0.8")
    with MooncakeMaster(tmp_path, *flags, "--eviction_ratio=0.2") as master:
        assert program(code, master.address).split() == ["1", "True", "True"]
        summary = master.page("/metrics/summary")
        assert "Eviction: Success/Attempts=0/" not in summary


def test_flags_that_are_not_known_are_warned_about(tmp_path: Path) -> None:
    port, http = free_port(), free_port()
    command = f"mooncake_master --rpc_address=127.0.0.1 --port={port} --metrics_port={http}"
    with running(
        tmp_path,
        lambda: answers(f"http://127.0.0.1:{http}/health"),
        *command.split(),
        "--brand_new=1",
        "--cxl_size=5",
    ):
        (log,) = tmp_path.glob("mooncake_master-*.log")
        said = log.read_text()
    assert "--brand_new is passed over" in said
    assert "--cxl_size has no effect" in said
    wrong = subprocess.run(
        ["mooncake_master", "--eviction_ratio=7"],
        env=shim_environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (wrong.returncode, wrong.stderr.count("\n")) == (2, 1)


def test_a_client_lends_memory_and_dummy_clients_find_the_pool(tmp_path: Path) -> None:
    with MooncakeMaster(tmp_path) as master:
        port = free_port()
        with running(
            tmp_path,
            lambda: answers(f"http://127.0.0.1:{port}/health"),
            "mooncake_client",
            "--host=127.0.0.1",
            f"--port={port}",
            "--global_segment_size=64 MB",
            f"--master_server_address={master.address}",
        ):
            assert ask_client(f"127.0.0.1:{port}")["master_server_address"] == master.address
            dummy = MooncakeDistributedStore()
            assert dummy.setup_dummy(MIB, MIB, f"127.0.0.1:{port}") == 0
            assert dummy.put("a", b"hello") == 0
            assert dummy.get("a") == b"hello"
            assert dummy.close() == 0
        with pytest.raises(MasterUnreachableError):
            ask_client(f"127.0.0.1:{port}", 1.0)
        eventually("the segment is gone", lambda: not master.page("/get_all_segments").strip(), 30)


def ask(url: str, method: str = "GET", body: object = None) -> tuple[int, bytes]:
    raw = None if body is None else json.dumps(body).encode()
    try:
        with urlopen(Request(url, raw, method=method), timeout=30) as reply:
            return reply.status, reply.read()
    except HTTPError as error:
        return error.code, error.read()


def test_the_rest_server(tmp_path: Path) -> None:
    with MooncakeMaster(tmp_path, "--default_kv_lease_ttl=1ms") as master:
        port = free_port()
        config = tmp_path / "mooncake.json"
        config.write_text(
            json.dumps(
                {
                    "local_hostname": "127.0.0.1",
                    "metadata_server": "P2PHANDSHAKE",
                    "master_server_address": master.address,
                    "global_segment_size": "64MB",
                    "local_buffer_size": 16 * MIB,
                    "protocol": "tcp",
                }
            )
        )
        url = f"http://127.0.0.1:{port}/api"
        with running(
            tmp_path,
            lambda: ask_quietly(f"{url}/exist/none"),
            "mc_store_rest_server",
            f"--config={config}",
            f"--port={port}",
        ):
            assert ask(f"{url}/put", "PUT", {"key": "a", "value": "hello"})[0] == 200
            assert ask(f"{url}/get/a") == (200, b"hello")
            assert json.loads(ask(f"{url}/exist/a")[1]) == {"exists": True}
            assert json.loads(ask(f"{url}/exist/b")[1]) == {"exists": False}
            assert ask(f"{url}/get/b")[0] == 404
            assert ask(f"{url}/put", "PUT", {"key": "a"})[0] == 400
            eventually("the lease ends", lambda: ask(f"{url}/remove/a", "DELETE")[0] == 200)
            assert ask(f"{url}/remove/a", "DELETE")[0] == 500
            assert ask(f"{url}/remove_all", "DELETE")[0] == 200
            status, body = ask(f"{url}/mount", "POST", {"size": 16 * MIB})
            assert status == 200
            assert len(master.page("/get_all_segments").split()) == 2
            ids = json.loads(body)["segment_ids"]
            assert ask(f"{url}/unmount", "POST", {"segment_ids": ids})[0] == 200
            eventually("one is left", lambda: len(master.page("/get_all_segments").split()) == 1)
            assert ask(f"{url}/unmount", "POST", {"segment_ids": ids})[0] == 500
            assert ask(f"{url}/mount", "POST", {"size": "much"})[0] == 400


def test_the_rest_server_and_shared_memory(tmp_path: Path, shared: Path) -> None:
    with shared.open("wb") as file:
        file.truncate(32 * MIB)
    with MooncakeMaster(tmp_path) as master, rest_server(tmp_path, master.address) as url:

        def post(what: str, **body: Any) -> tuple[int, Any]:
            status, answer = ask(f"{url}/{what}", "POST", body)
            return status, json.loads(answer)

        def lent(count: int) -> None:
            eventually(
                f"{count} segments", lambda: len(master.page("/get_all_segments").split()) == count
            )

        assert post("mount_shm")[0] == 400
        assert post("mount_shm", name="../etc/passwd", size=16 * MIB)[0] == 400
        assert post("mount_shm", name="no-such-thing", size=16 * MIB)[0] == 500
        status, found = post("mount_shm", name=shared.name, size=16 * MIB, offset=16 * MIB)
        assert (status, found["status"], len(found["segment_ids"])) == (200, "success", 1)
        lent(2)
        ids = found["segment_ids"]
        assert post("unmount_shm", segment_ids=ids) == (200, {"status": "success"})
        lent(1)
        status, failed = post("unmount_shm", segment_ids=ids)
        assert (status, failed["failed_segment_ids"]) == (500, ids)
        assert post("unmount_local_disk", grace_period_seconds=0)[0] == 200
        assert post("unmount_local_disk", grace_period_seconds=3601)[0] == 400
        assert post("reconfigure", mode="sideways")[0] == 400
        assert post("reconfigure", mode="decode")[0] == 400
        wanted = {"mode": "decode", "path": str(shared), "size": 16 * MIB}
        status, first = post("reconfigure", **wanted)
        assert (status, first["mode"]) == (200, "decode")
        status, second = post("reconfigure", **wanted)
        assert (status, len(second["segment_ids"])) == (200, 1)
        assert second["segment_ids"] != first["segment_ids"]
        lent(2)
        status, kept = post("reconfigure", **wanted | {"path": "/no/such/file"})
        assert (status, kept["mode"]) == (500, "decode")
        assert post("reconfigure", mode="prefill") == (
            200,
            {"status": "success", "mode": "prefill"},
        )
        lent(1)


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[Path]:
    path = Path("/dev/shm") / f"moonpool-test-{os.getpid()}-{tmp_path.name}"
    yield path
    path.unlink(missing_ok=True)


@contextmanager
def rest_server(folder: Path, master: str) -> Iterator[str]:
    """Run the REST server with a small segment; yield where its API is."""
    port = free_port()
    config = folder / "rest.json"
    config.write_text(
        json.dumps(
            {
                "local_hostname": "127.0.0.1",
                "metadata_server": "P2PHANDSHAKE",
                "master_server_address": master,
                "global_segment_size": "16MB",
                "local_buffer_size": 16 * MIB,
                "protocol": "tcp",
            }
        )
    )
    url = f"http://127.0.0.1:{port}/api"
    program = "mc_store_rest_server", f"--config={config}", f"--port={port}"
    with running(folder, lambda: ask_quietly(f"{url}/exist/none"), *program):
        yield url


def ask_quietly(url: str) -> bool:
    try:
        return ask(url)[0] == 200
    except OSError:
        return False


def test_the_bench_of_the_transfer_engine(tmp_path: Path) -> None:
    flags = (
        "--local_server_name=127.0.0.1",
        "--buffer_size=16MB",
        "--metadata_server=P2PHANDSHAKE",
    )
    with running(tmp_path, lambda: bool(target_of(tmp_path)), *bench("target"), *flags):
        done = subprocess.run(
            [
                *bench("initiator"),
                *flags,
                f"--segment_id={target_of(tmp_path)}",
                "--operation=write",
                "--threads=2",
                "--duration=1",
            ],
            env=shim_environment(),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert "throughput" in done.stdout
    assert "0.00 GB/s" not in done.stdout


def bench(mode: str) -> tuple[str, str]:
    return "transfer_engine_bench", f"--mode={mode}"


def target_of(folder: Path) -> str:
    for log in folder.glob("transfer_engine_bench-*.log"):
        words = log.read_text().split()
        if words[:1] == ["target"] and len(words) == 2:
            return words[1]
    return ""


def test_engines_of_two_processes(tmp_path: Path) -> None:
    other = """
import sys, time
import numpy as np
from mooncake.engine import TransferEngine
engine = TransferEngine()
assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
data = np.full(1 << 20, 7, np.uint8)
assert engine.register_memory(data.ctypes.data, data.nbytes) == 0
print(engine.get_rpc_port(), data.ctypes.data, flush=True)
sys.stdin.readline()
notes = [each.msg for each in engine.get_notifies()]
print(data[:4].tolist(), data[-1], notes, flush=True)
"""
    code = """
import sys
import numpy as np
from mooncake.engine import TransferEngine, TransferNotify, TransferOpcode
peer, theirs = f"127.0.0.1:{sys.argv[1]}", int(sys.argv[2])
engine = TransferEngine()
assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
data = np.arange(1 << 20, dtype=np.uint32).view(np.uint8)
engine.register_memory(data.ctypes.data, data.nbytes)
at = data.ctypes.data
note = TransferNotify("n", "written")
codes = [
    engine.transfer_sync(peer, at + 4, theirs, 4, TransferOpcode.Write, note),
    engine.transfer_sync_read(peer, at, theirs + 100, 100),
    engine.transfer_sync_write(peer, at, theirs + (1 << 20) - 1, 2),
    engine.get_first_buffer_address(peer) == theirs,
]
print(codes, data[:100].tolist() == [7] * 100)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", other],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=shim_environment(),
    )
    try:
        assert process.stdout is not None
        port, address = process.stdout.readline().split()
        assert program(code, port, address).strip() == "[0, 0, -1, True] True"
        said, _ = process.communicate("\n", timeout=30)
    finally:
        process.kill()
        process.wait()
    assert said.strip() == "[1, 0, 0, 0] 7 ['written']"
    assert (SHIM / "bin" / "transfer_engine_topology_dump").exists()


async def test_the_proxy_server_is_a_router(tmp_path: Path) -> None:
    prefill, decode = Engine("p"), Engine("d")
    async with AsyncExitStack() as stack:
        urls = [
            await stack.enter_async_context(serving_app(each.app())) for each in (prefill, decode)
        ]
        ports = [url.rpartition(":")[2] for url in urls]
        port = free_port()
        command = (
            *(sys.executable, "-m", "mooncake.vllm_v1_proxy_server", f"--port={port}"),
            *("--prefiller-host", "127.0.0.1", "--prefiller-port", ports[0]),
            *("--decoder-host", "127.0.0.1", "--decoder-port", ports[1]),
        )
        url = f"http://127.0.0.1:{port}"
        process = await asyncio.create_subprocess_exec(*command, env=shim_environment())
        try:
            session = await stack.enter_async_context(aiohttp.ClientSession())
            health = await poll(session, f"{url}/healthcheck")
            assert health == {"status": "ok", "prefill_instances": 1, "decode_instances": 1}
            body = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
            async with session.post(f"{url}/v1/chat/completions", json=body) as reply:
                assert (reply.status, await reply.json()) == (200, {"by": "d"})
        finally:
            process.terminate()
            await asyncio.wait_for(process.wait(), 30)


async def poll(session: aiohttp.ClientSession, url: str) -> Any:
    deadline = time.monotonic() + 60
    while True:
        try:
            async with session.get(url) as reply:
                return await reply.json()
        except aiohttp.ClientError:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.1)
