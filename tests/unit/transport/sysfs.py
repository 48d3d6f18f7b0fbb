"""Trees like /sys, as machines of several kinds show them."""

from __future__ import annotations

from pathlib import Path

NVIDIA, MELLANOX = "0x10de", "0x15b3"


class Sysfs:
    """Builds a tree under ``root``."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._write("devices/system/node/online", "0")

    def pci(self, path: list[str], class_code: str, vendor: str, node: int) -> str:
        """Add a device below a host bridge and bridges; return where it is."""
        where = "/".join(["devices", *path])
        self._write(f"{where}/class", class_code)
        self._write(f"{where}/vendor", vendor)
        self._write(f"{where}/numa_node", str(node))
        self._link(f"bus/pci/devices/{path[-1]}", where)
        return where

    def gpu(self, path: list[str], node: int) -> None:
        self.pci(path, "0x030200", NVIDIA, node)

    def rdma(
        self, name: str, path: list[str], node: int, *, up: bool = True, net: str = ""
    ) -> None:
        where = self.pci(path, "0x020700", MELLANOX, node)
        port = f"{where}/infiniband/{name}/ports/1"
        self._write(f"{port}/state", "4: ACTIVE" if up else "1: DOWN")
        self._write(f"{port}/rate", "400 Gb/sec (4X NDR)")
        self._link(f"{where}/infiniband/{name}/device", where)
        self._link(f"class/infiniband/{name}", f"{where}/infiniband/{name}")
        if net:
            self.net(net, where)

    def net(self, name: str, where: str, *, state: str = "up", speed: str = "") -> None:
        here = f"{where}/net/{name}"
        self._write(f"{here}/operstate", state)
        if speed:
            self._write(f"{here}/speed", speed)
        self._link(f"{here}/device", where)
        self._link(f"class/net/{name}", here)

    def node(self, number: int, cpus: str, gib: int) -> None:
        here = f"devices/system/node/node{number}"
        self._write(f"{here}/cpulist", cpus)
        self._write(f"{here}/meminfo", f"Node {number} MemTotal:  {gib << 20} kB\n")

    def _write(self, path: str, text: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")

    def _link(self, path: str, target: str) -> None:
        link = self.root / path
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(self.root / target)


def dgx_h100(root: Path) -> Path:
    """Two sockets; eight switches, each with a GPU and its NIC; storage NICs; a slow interface."""
    tree = Sysfs(root)
    roots = [("15", 0), ("26", 0), ("37", 0), ("48", 0), ("97", 1), ("a7", 1), ("b7", 1), ("c7", 1)]
    for number, (bus, node) in enumerate(roots):
        base = int(bus, 16)

        def at(step: int, device: int = 0, base: int = base) -> str:
            return f"0000:{base + step:02x}:{device:02x}.0"

        switch = [f"pci0000:{bus}", f"0000:{bus}:01.0", at(1)]
        tree.gpu([*switch, at(2, 0), at(3)], node)
        tree.rdma(f"mlx5_{number}", [*switch, at(2, 1), at(4)], node)
    tree.rdma("mlx5_8", ["pci0000:59", "0000:59:01.0", "0000:5a:00.0"], 0, net="enp90s0np0")
    tree.rdma("mlx5_9", ["pci0000:d9", "0000:d9:01.0", "0000:da:00.0"], 1, up=False)
    plain = tree.pci(["pci0000:00", "0000:00:1f.6"], "0x020000", "0x8086", 0)
    tree.net("eno1", plain, speed="1000")
    tree.node(0, "0-55,112-167", 1024)
    tree.node(1, "56-111,168-223", 1024)
    return root


def small_box(root: Path) -> Path:
    """One socket, one GPU at the processor, no NIC but one that is down, and a bridge."""
    tree = Sysfs(root)
    tree.gpu(["pci0000:00", "0000:00:01.0", "0000:01:00.0"], -1)
    plain = tree.pci(["pci0000:00", "0000:00:1c.0", "0000:02:00.0"], "0x020000", "0x10ec", -1)
    tree.net("enp2s0", plain, state="down", speed="-1")
    (root / "class/net/lo").mkdir(parents=True)
    (root / "class/net/docker0").mkdir()
    tree.node(0, "0-15", 64)
    return root


def cloud_vm(root: Path, gpus: int = 8, nics: int = 8) -> Path:
    """A virtual machine that shows all devices at one host bridge, two nodes."""
    tree = Sysfs(root)
    for number in range(gpus):
        tree.gpu([f"pci{number + 1:04x}:00", f"{number + 1:04x}:00:00.0"], number * 2 // gpus)
    for number in range(nics):
        path = [f"pci{number + 257:04x}:00", f"{number + 257:04x}:00:02.0"]
        tree.rdma(f"mlx5_ib{number}", path, number * 2 // nics)
    virtio = tree.pci(["pci0000:00", "0000:00:03.0"], "0x020000", "0x1af4", -1)
    tree.net("eth0", f"{virtio}/virtio0", state="up")
    tree.node(0, "0-47", 900)
    tree.node(1, "48-95", 900)
    return root


def flat_vm(root: Path) -> Path:
    """Four GPUs and two NICs at one bus, no node known."""
    tree = Sysfs(root)
    for number in range(4):
        tree.gpu(["pci0000:00", f"0000:00:{16 + number:02x}.0"], -1)
    for number in range(2):
        tree.rdma(f"mlx5_{number}", ["pci0000:00", f"0000:00:{8 + number:02x}.0"], -1)
    return root
