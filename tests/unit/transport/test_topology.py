"""Which NIC is near which GPU, on trees as several kinds of machines show them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from moonpool.config import ClientConfig, NodeConfig
from moonpool.transport import topology
from moonpool.transport.onesided_options import options_for

from . import sysfs


def test_each_gpu_of_a_dgx_has_the_nic_of_its_switch(tmp_path: Path) -> None:
    found = topology.read(sysfs.dgx_h100(tmp_path))
    assert len(found.gpus) == 8
    assert [nic.name for nic in found.nics] == [*(f"mlx5_{i}" for i in range(10)), "eno1"]
    for number, gpu in enumerate(found.gpus):
        assert [nic.name for nic in found.near_gpu(number)] == [f"mlx5_{number}"]
        distances = {nic.name: found.distance(gpu, nic) for nic in found.nics}
        assert distances.pop(f"mlx5_{number}") == "PIX"
        same = {f"mlx5_{i}" for i in range(8) if i // 4 == number // 4 and i != number}
        assert {name for name, d in distances.items() if d == "NODE"} >= same
        assert {name for name, d in distances.items() if d == "SYS"} >= {
            f"mlx5_{i}" for i in range(8) if i // 4 != number // 4
        }
    assert [nic.name for nic in found.near_node(0)] == [f"mlx5_{i}" for i in (0, 1, 2, 3, 8)]
    assert [nic.name for nic in found.near_node(1)] == [f"mlx5_{i}" for i in range(4, 8)]
    assert "mlx5_9" not in {nic.name for nic in found.rdma()}
    ethernet = found.nics[-1]
    assert (ethernet.rdma, ethernet.up, ethernet.gbit_s) == ("", True, 1.0)
    assert found.nics[8].net == "enp90s0np0"
    assert found.nics[0].gbit_s == 400
    assert [(n.number, n.cpus, n.memory_bytes >> 30) for n in found.nodes] == [
        (0, "0-55,112-167", 1024),
        (1, "56-111,168-223", 1024),
    ]


def test_a_box_without_a_nic(tmp_path: Path) -> None:
    found = topology.read(sysfs.small_box(tmp_path))
    assert [nic.name for nic in found.nics] == ["enp2s0"]
    assert found.near_gpu(0) == found.near_node(0) == found.usable() == []
    assert found.distance(found.gpus[0], found.nics[0]) == "PHB"
    json.dumps(found.as_json())


def test_a_virtual_machine_shares_its_nics_out(tmp_path: Path) -> None:
    found = topology.read(sysfs.cloud_vm(tmp_path))
    chosen = [[nic.name for nic in found.near_gpu(n)] for n in range(8)]
    assert chosen == [[f"mlx5_ib{n}"] for n in range(8)]
    assert {found.distance(found.gpus[0], nic) for nic in found.rdma()} == {"NODE", "SYS"}
    assert [nic.node for nic in found.nics if nic.name == "eth0"] == [-1]


def test_fewer_nics_than_gpus_and_no_nodes(tmp_path: Path) -> None:
    found = topology.read(sysfs.flat_vm(tmp_path))
    chosen = [[nic.name for nic in found.near_gpu(n)] for n in range(4)]
    assert chosen == [["mlx5_0"], ["mlx5_1"], ["mlx5_0"], ["mlx5_1"]]
    assert found.near_gpu(7) == found.usable()
    assert {found.distance(gpu, nic) for gpu in found.gpus for nic in found.nics} == {"PHB"}


def test_nothing_there(tmp_path: Path) -> None:
    assert topology.read(tmp_path) == topology.Topology()
    (tmp_path / "bus").mkdir()
    (tmp_path / "bus/pci").write_text("a file")
    assert topology.read(tmp_path) == topology.Topology()


def test_a_broken_tree(tmp_path: Path) -> None:
    tree = sysfs.dgx_h100(tmp_path)
    for path in tree.rglob("numa_node"):
        path.write_text("?")
    for path in tree.rglob("rate"):
        path.unlink()
    (tree / "class/net/loop").symlink_to(tree / "class/net/loop")
    found = topology.read(tree)
    assert [nic.name for nic in found.near_gpu(3)] == ["mlx5_3"]
    assert {gpu.node for gpu in found.gpus} == {-1}
    assert found.nics[0].gbit_s == 0


# --- from there to the engines' settings --------------------------------------------------------


def test_ucx_gets_the_nearest_nics(tmp_path: Path) -> None:
    found = topology.read(sysfs.dgx_h100(tmp_path))
    near = options_for("nixl", ClientConfig(), gpu=5, topology=found, env={})
    assert near.environment == {"UCX_NET_DEVICES": "mlx5_5:1"}
    node = options_for("nixl", NodeConfig(), topology=found, env={})
    assert node.environment["UCX_NET_DEVICES"] == ",".join(f"mlx5_{i}:1" for i in range(9))
    assert node.engine == {"backends": ["UCX"]}


def test_what_is_said_comes_before_what_is_found(tmp_path: Path) -> None:
    found = topology.read(sysfs.dgx_h100(tmp_path))
    said = ClientConfig(nixl_devices=("mlx5_8:1",), nixl_ucx=("UCX_TLS=rc,cuda",))
    options = options_for("nixl", said, gpu=0, topology=found, env={})
    assert options.environment == {"UCX_NET_DEVICES": "mlx5_8:1", "UCX_TLS": "rc,cuda"}
    env = {"UCX_NET_DEVICES": "all"}
    assert options_for("nixl", ClientConfig(), topology=found, env=env).environment == {}


@pytest.mark.parametrize("env", [{}, {"UCX_MODULES": "all"}])
def test_without_rdma_its_modules_stay_away(tmp_path: Path, env: dict[str, str]) -> None:
    found = topology.read(sysfs.small_box(tmp_path))
    options = options_for("nixl", NodeConfig(), topology=found, env=env)
    assert options.environment == ({} if env else {"UCX_MODULES": "^ib"})


def test_mooncake_gets_devices_only_for_rdma(tmp_path: Path) -> None:
    found = topology.read(sysfs.cloud_vm(tmp_path))
    plain = options_for("mooncake", ClientConfig(), gpu=2, topology=found)
    assert plain.engine == {"protocol": ["tcp"], "devices": []}
    rdma = ClientConfig(mooncake_protocol="rdma")
    assert options_for("mooncake", rdma, gpu=2, topology=found).engine["devices"] == ["mlx5_ib2"]
    named = ClientConfig(mooncake_protocol="rdma", mooncake_devices=("a", "b"))
    assert options_for("mooncake", named, topology=found).engine["devices"] == ["a", "b"]
