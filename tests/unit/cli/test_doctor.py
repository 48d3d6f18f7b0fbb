"""What the doctor finds out, and when it says that something is not well."""

from __future__ import annotations

import json
import resource
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from moonpool.cli import doctor_checks as checks
from moonpool.cli.app import app
from moonpool.cli.doctor_checks import BAD, NOTE, OFF, WELL, Machine
from moonpool.config import ClientConfig, NodeConfig
from moonpool.transport import topology
from moonpool.transport.onesided_engine import EngineError
from tests.unit.transport import sysfs


class Started:
    """A carrier that says what it was started with."""

    backends = ("UCX",)
    killed = 0

    def __init__(self, setup: Any, environment: dict[str, str]) -> None:
        self.setup, self.environment = setup, environment

    def kill(self) -> None:
        Started.killed += 1


STARTED: Callable[..., Any] = Started


def refuses(*_: object) -> Any:
    raise EngineError("NIXL is not installed")


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    node = NodeConfig(segment_dir=str(tmp_path / "shm"), size=1 << 20)
    return Machine(node, ClientConfig(), topology.Topology(), tmp_path, start=STARTED)


def test_an_engine_is_off_where_nobody_asks_for_it(machine: Machine) -> None:
    off = checks.nixl(replace(machine, start=refuses))
    assert (off.state, off.found) == (OFF, "NIXL is not installed")
    before = Started.killed
    assert checks.nixl(machine).state == WELL
    assert Started.killed == before + 1


@pytest.mark.parametrize(
    ("node", "client"), [(("nixl",), ("shm", "tcp")), ((), ("shm", "nixl", "tcp"))]
)
def test_an_engine_that_is_asked_for_must_work(
    machine: Machine, node: tuple[str, ...], client: tuple[str, ...]
) -> None:
    asks = replace(
        machine,
        node=replace(machine.node, engines=node),
        client=replace(machine.client, transports=client),
    )
    assert checks.nixl(replace(asks, start=refuses)).state == BAD
    assert checks.mooncake(replace(asks, start=refuses)).state == OFF
    without_rdma = checks.nixl(asks)
    assert without_rdma.state == NOTE
    assert "no device" in without_rdma.found


def test_rdma_devices_are_named(machine: Machine, tmp_path: Path) -> None:
    found = topology.read(sysfs.dgx_h100(tmp_path / "sys"))
    finding = checks.nixl(replace(machine, topology=found))
    assert finding.state == WELL
    assert "mlx5_7" in finding.found


def test_shared_memory_must_hold_the_node(machine: Machine) -> None:
    assert checks.shared_memory(machine).state == WELL
    large = replace(machine, node=replace(machine.node, size=1 << 50))
    finding = checks.shared_memory(large)
    assert finding.state == BAD
    assert "1024.0 TiB" in finding.found
    assert finding.advice


def test_tcp_windows(machine: Machine, tmp_path: Path) -> None:
    assert checks.tcp(machine).state == NOTE
    folder = tmp_path / "proc/sys/net/ipv4"
    folder.mkdir(parents=True)
    for name, limit in (("tcp_rmem", 1 << 20), ("tcp_wmem", 64 << 20)):
        (folder / name).write_text(f"4096\t131072\t{limit}\n")
    narrow = checks.tcp(machine)
    assert narrow.state == NOTE
    assert narrow.advice
    (folder / "tcp_rmem").write_text(f"4096 131072 {64 << 20}\n")
    assert checks.tcp(machine).state == WELL
    (folder / "tcp_rmem").write_text("words of another kind\n")
    assert checks.tcp(machine).state == NOTE


def test_rdma_needs_locked_memory(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _which: (1 << 16, 1 << 16))
    assert checks.locked_memory(machine).state == NOTE
    found = topology.read(sysfs.dgx_h100(tmp_path / "sys"))
    asks = replace(machine, topology=found, node=replace(machine.node, engines=("nixl",)))
    assert checks.locked_memory(asks).state == BAD
    monkeypatch.setattr(resource, "getrlimit", lambda _which: (resource.RLIM_INFINITY,) * 2)
    assert checks.locked_memory(asks).state == WELL


def test_a_gpu_without_a_driver_is_bad(machine: Machine, tmp_path: Path) -> None:
    without = checks.gpu_driver(machine)
    with_gpus = checks.gpu_driver(
        replace(machine, topology=topology.read(sysfs.dgx_h100(tmp_path / "sys")))
    )
    if without.state == OFF:  # no driver here
        assert with_gpus.state == BAD
        assert with_gpus.found.startswith("8 GPUs")
    else:
        assert with_gpus.state == WELL


def test_huge_pages_and_tun(machine: Machine, tmp_path: Path) -> None:
    assert "not known" in checks.huge_pages(machine).found
    folder = tmp_path / "sys/kernel/mm/transparent_hugepage"
    folder.mkdir(parents=True)
    (folder / "shmem_enabled").write_text("always within_size [advise] never\n")
    assert checks.huge_pages(machine).found.endswith("advise")
    assert checks.tun(machine).state == OFF
    (tmp_path / "dev/net").mkdir(parents=True)
    (tmp_path / "dev/net/tun").touch()
    assert checks.tun(machine).state == WELL


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["doctor", *arguments])


def test_the_exit_code_says_whether_all_is_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("MOONPOOL_NODE_ENGINES", "MOONPOOL_CLIENT_TRANSPORTS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(topology, "read", lambda: topology.Topology())
    monkeypatch.setattr(Machine, "start", Started)
    monkeypatch.setattr(Machine.__init__, "__defaults__", (Path("/"), Started))
    config = tmp_path / "node.toml"
    config.write_text(f'[node]\nsegment_dir = "{tmp_path}"\nsize = "1MB"\n')
    result = run("--json", "--config", str(config))
    assert result.exit_code == 0, result.output
    answer = json.loads(result.stdout)
    assert {each["name"] for each in answer["findings"]} >= {"shm", "tcp", "nixl", "mooncake"}
    assert set(answer["topology"]) == {"gpus", "nics", "nodes"}
    config.write_text(f'[node]\nsegment_dir = "{tmp_path}"\nsize = "1024TB"\n')
    result = run("--config", str(config))
    assert result.exit_code == 1
    assert "not well: shm" in result.stderr


def test_tables_of_a_large_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = topology.read(sysfs.dgx_h100(tmp_path / "sys"))
    monkeypatch.setattr(topology, "read", lambda: found)
    monkeypatch.setattr(Machine.__init__, "__defaults__", (Path("/"), Started))
    config = tmp_path / "node.toml"
    config.write_text(f'[node]\nsegment_dir = "{tmp_path}"\nsize = "1MB"\n')
    output = run("--config", str(config)).stdout
    row = next(line for line in output.splitlines() if "gpu6" in line)
    assert "PIX" in row
    assert row.rstrip(" │").endswith("mlx5_6")


def test_wrong_usage(tmp_path: Path) -> None:
    assert run("--config", str(tmp_path / "none.toml")).exit_code == 2
