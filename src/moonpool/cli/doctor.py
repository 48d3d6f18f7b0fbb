"""``moonpool doctor``."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from moonpool.cli.output import NOT_WELL, fail, print_json, print_table, reports_errors, size_text
from moonpool.cli.pool import Json

if TYPE_CHECKING:
    from moonpool.transport.topology import Topology

Config = Annotated[
    Path | None, typer.Option("--config", help="TOML, JSON or YAML file", metavar="FILE")
]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("doctor")(doctor)


@reports_errors
def doctor(as_json: Json = False, config: Config = None) -> None:
    """Show which ways of moving bytes work on this machine, and which NIC is near which GPU. Exit
    code 1 if something that the configuration asks for does not work."""
    from moonpool.cli.doctor_checks import BAD, Machine, all_findings
    from moonpool.config import ClientConfig, NodeConfig, load
    from moonpool.transport import topology

    found = topology.read()
    machine = Machine(load(NodeConfig, file=config), load(ClientConfig, file=config), found)
    findings = all_findings(machine)
    if as_json:
        print_json({"findings": [asdict(each) for each in findings], "topology": found.as_json()})
    else:
        rows = [[each.name, each.state, each.found, each.advice] for each in findings]
        print_table(["what", "state", "found", "advice"], rows)
        _print_topology(found)
    bad = [each.name for each in findings if each.state == BAD]
    if bad:
        fail(f"not well: {', '.join(bad)}", NOT_WELL)


def _print_topology(found: Topology) -> None:
    if found.gpus:
        rows = [
            [
                gpu.name,
                gpu.pci,
                _node(gpu.node),
                *(found.distance(gpu, nic) for nic in found.nics),
                ", ".join(nic.name for nic in found.near_gpu(number)),
            ]
            for number, gpu in enumerate(found.gpus)
        ]
        names = [nic.name for nic in found.nics]
        print_table(["GPU", "PCI", "node", *names, "uses"], rows)
    if found.nics:
        rows = [
            [
                nic.name,
                nic.net,
                nic.pci,
                _node(nic.node),
                "RDMA" if nic.rdma else "",
                "up" if nic.up else "down",
                f"{nic.gbit_s:g}" if nic.gbit_s else "",
            ]
            for nic in found.nics
        ]
        print_table(["NIC", "interface", "PCI", "node", "kind", "state", "Gbit/s"], rows)
    rows = [
        [
            str(node.number),
            node.cpus,
            size_text(node.memory_bytes),
            ", ".join(nic.name for nic in found.near_node(node.number)),
        ]
        for node in found.nodes
    ]
    print_table(["NUMA node", "CPUs", "memory", "NICs"], rows)


def _node(number: int) -> str:
    return str(number) if number >= 0 else "-"
