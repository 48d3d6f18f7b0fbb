"""Which NIC is near which GPU and NUMA node, read from sysfs.

Distances are those that ``nvidia-smi topo`` names: PIX, one PCIe switch between the two; PXB,
several; PHB, the same host bridge; NODE, the same NUMA node; SYS, across nodes. A virtual
machine often shows all devices at one host bridge; then all are equally near, and the NICs are
shared out among the GPUs.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path("/sys")
DISTANCES = ("PIX", "PXB", "PHB", "NODE", "SYS")

_PCI = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]")
_BRIDGE = re.compile(r"pci[0-9a-f]{4}:[0-9a-f]{2}")
_GPU_VENDORS = {"0x10de": "NVIDIA", "0x1002": "AMD"}
_DISPLAY_CLASS = "0x03"
_SWITCH_STEPS = 2


@dataclass(frozen=True)
class Device:
    """A GPU or a NIC. ``path`` leads from the host bridge to the device; node -1: not known."""

    name: str
    pci: str
    node: int
    path: tuple[str, ...] = ()
    vendor: str = ""


@dataclass(frozen=True)
class Nic(Device):
    """``rdma`` names its RDMA device, if it has one; ``gbit_s`` is 0 where it is not known."""

    rdma: str = ""
    net: str = ""
    up: bool = False
    gbit_s: float = 0.0
    port: int = 1


@dataclass(frozen=True)
class Node:
    """A NUMA node."""

    number: int
    cpus: str
    memory_bytes: int


@dataclass(frozen=True)
class Topology:
    """What a machine has; all lists in the order of their PCI addresses, names or numbers."""

    gpus: tuple[Device, ...] = ()
    nics: tuple[Nic, ...] = ()
    nodes: tuple[Node, ...] = ()

    def rdma(self) -> list[Nic]:
        """Return the NICs that can do RDMA and are up."""
        return [nic for nic in self.nics if nic.rdma and nic.up]

    def usable(self) -> list[Nic]:
        """Return the RDMA NICs that are up, or else all NICs that are."""
        return self.rdma() or [nic for nic in self.nics if nic.up]

    def near_gpu(self, number: int) -> list[Nic]:
        """Return the NICs that a GPU should use, the nearest ones."""
        if not 0 <= number < len(self.gpus):
            return self.usable()
        gpu, nics = self.gpus[number], self.usable()
        if not nics:
            return []
        best = min(_cost(gpu, nic) for nic in nics)
        near = [nic for nic in nics if _cost(gpu, nic) == best]
        peers = [g for g in self.gpus if {n.pci for n in self._nearest(g, nics)} == _pcis(near)]
        if len(near) < 2 or len(peers) < 2:
            return near
        turn = peers.index(gpu)
        return near[turn :: len(peers)] or [near[turn % len(near)]]

    def near_node(self, number: int) -> list[Nic]:
        """Return the NICs at a NUMA node, or all where none is known to be there."""
        nics = self.usable()
        return [nic for nic in nics if nic.node == number] or nics

    def distance(self, gpu: Device, nic: Device) -> str:
        """Return one of DISTANCES."""
        return DISTANCES[_cost(gpu, nic)[0]]

    def as_json(self) -> dict[str, object]:
        """Return all of it, with the distances and the choices."""
        return {
            "gpus": [
                {
                    **asdict(gpu),
                    "distances": {nic.name: self.distance(gpu, nic) for nic in self.nics},
                    "nics": [nic.name for nic in self.near_gpu(number)],
                }
                for number, gpu in enumerate(self.gpus)
            ],
            "nics": [asdict(nic) for nic in self.nics],
            "nodes": [
                {**asdict(node), "nics": [nic.name for nic in self.near_node(node.number)]}
                for node in self.nodes
            ],
        }

    @staticmethod
    def _nearest(gpu: Device, nics: list[Nic]) -> list[Nic]:
        best = min(_cost(gpu, nic) for nic in nics)
        return [nic for nic in nics if _cost(gpu, nic) == best]


def _pcis(nics: list[Nic]) -> set[str]:
    return {nic.pci for nic in nics}


def _cost(a: Device, b: Device) -> tuple[int, int]:
    """Return (index into DISTANCES, steps through the PCIe tree)."""
    common = 0
    for mine, other in zip(a.path, b.path, strict=False):
        if mine != other:
            break
        common += 1
    steps = max(len(a.path), len(b.path)) - common
    if common > 1:
        return (0 if steps <= _SWITCH_STEPS else 1), steps
    same_node = a.node == b.node and a.node >= 0
    other_node = a.node != b.node and a.node >= 0 and b.node >= 0
    if common == 1 and not other_node:
        return 2, 0
    return (3 if same_node else 4), 0


# --- reading ------------------------------------------------------------------------------------


def read(root: Path = ROOT) -> Topology:
    """Return what the sysfs tree at ``root`` shows; what cannot be read is left out."""
    return Topology(tuple(_gpus(root)), tuple(_nics(root)), tuple(_nodes(root)))


def _gpus(root: Path) -> list[Device]:
    found: list[Device] = []
    for entry in _listed(root / "bus/pci/devices"):
        vendor = _GPU_VENDORS.get(_text(entry / "vendor"), "")
        if vendor and _text(entry / "class").startswith(_DISPLAY_CLASS):
            path = _pci_path(entry)
            found.append(Device(f"gpu{len(found)}", entry.name, _node(entry), path, vendor))
    return found


def _nics(root: Path) -> list[Nic]:
    """RDMA devices, each with its network interface, and then the interfaces without one."""
    found: list[Nic] = []
    seen: set[str] = set()
    for entry in _listed(root / "class/infiniband"):
        device = entry / "device"
        nets = [each.name for each in _listed(device / "net")]
        port = next(iter(_listed(entry / "ports")), entry / "ports/1")
        seen.update(nets)
        found.append(
            _nic(
                entry.name,
                device,
                rdma=entry.name,
                net=",".join(nets),
                up=_text(port / "state").startswith("4"),
                gbit_s=_number(_text(port / "rate").partition(" ")[0]),
                port=int(_number(port.name) or 1),
            )
        )
    for entry in _listed(root / "class/net"):
        if entry.name in seen or not (entry / "device").exists():
            continue
        up = _text(entry / "operstate") in ("up", "unknown")
        speed = max(0.0, _number(_text(entry / "speed"))) / 1000
        found.append(_nic(entry.name, entry / "device", net=entry.name, up=up, gbit_s=speed))
    return found


def _nic(name: str, device: Path, **more: object) -> Nic:
    path = _pci_path(device)
    return Nic(name, path[-1] if path else "", _node(device), path, **more)  # type: ignore[arg-type]


def _nodes(root: Path) -> list[Node]:
    found = []
    for entry in _listed(root / "devices/system/node"):
        number = re.fullmatch(r"node(\d+)", entry.name)
        if number:
            memory = re.search(r"MemTotal:\s+(\d+) kB", _text(entry / "meminfo"))
            nbytes = 1024 * int(memory[1]) if memory else 0
            found.append(Node(int(number[1]), _text(entry / "cpulist"), nbytes))
    return sorted(found, key=lambda node: node.number)


def _pci_path(device: Path) -> tuple[str, ...]:
    """Return host bridge, bridges and device, as the real path of a device names them."""
    try:
        parts = device.resolve().parts
    except (OSError, RuntimeError):
        return ()
    return tuple(p for p in parts if _PCI.fullmatch(p) or _BRIDGE.fullmatch(p))


def _node(device: Path) -> int:
    """Return the NUMA node; a device that has none (virtio) is where its parent is."""
    try:
        here = device.resolve()
    except (OSError, RuntimeError):
        return -1
    for each in (here, here.parent):
        text = _text(each / "numa_node")
        if re.fullmatch(r"-?\d+", text):
            return int(text)
    return -1


def _listed(directory: Path) -> list[Path]:
    try:
        return sorted(directory.iterdir())
    except OSError:
        return []


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:  # the speed of an interface that is down, for one
        return ""


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0
