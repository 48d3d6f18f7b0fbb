"""What ``get_local_topology`` says: which NICs are near which memory."""

from __future__ import annotations

import json

from moonpool.transport.topology import Topology, read


def topology_json(devices: str = "") -> str:
    """Return Mooncake's form: for each NUMA node and GPU the near NICs, and the others.

    devices: names of RDMA devices, with commas; empty: all.
    """
    found = read()
    wanted = {each.strip() for each in devices.split(",") if each.strip()}
    nics = [nic.rdma for nic in found.rdma() if not wanted or nic.rdma in wanted]
    table = {f"cpu:{node.number}": _split(found, node.number, nics) for node in found.nodes}
    for number in range(len(found.gpus)):
        near = [nic.rdma for nic in found.near_gpu(number) if nic.rdma in nics]
        table[f"cuda:{number}"] = [near, [nic for nic in nics if nic not in near]]
    return json.dumps(table or {"cpu:0": [nics, []]}, indent=4)


def _split(found: Topology, node: int, nics: list[str]) -> list[list[str]]:
    near = [nic.rdma for nic in found.near_node(node) if nic.rdma in nics]
    return [near, [nic for nic in nics if nic not in near]]
