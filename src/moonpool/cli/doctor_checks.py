"""What ``moonpool doctor`` looks at. Each check finds out one thing about this machine."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import resource
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from moonpool.cli.output import size_text
from moonpool.config import ClientConfig, NodeConfig, default_segment_dir
from moonpool.transport.onesided_carrier import Carrier
from moonpool.transport.onesided_engine import EngineError, Region, Setup
from moonpool.transport.onesided_options import options_for
from moonpool.transport.topology import Topology

WELL, NOTE, BAD, OFF = "well", "note", "bad", "off"
SCRATCH_BYTES = 4096
WINDOW_BYTES_MIN = 16 << 20
"""A TCP window under this cannot keep 10 Gbit/s busy over 10 ms."""
WHEELS = {
    "nixl": ("nixl-cu12", "nixl-cu13", "nixl"),
    "mooncake": (
        "mooncake-transfer-engine-non-cuda",
        "mooncake-transfer-engine",
        "mooncake-transfer-engine-cuda13",
    ),
}


@dataclass(frozen=True)
class Finding:
    """One line of the report. ``state``: well, note (worth knowing), bad (asked for, and does not
    work) or off (does not work here, and nothing asks for it)."""

    name: str
    state: str
    found: str
    advice: str = ""


@dataclass(frozen=True)
class Machine:
    """Where to look, and for what. ``root`` holds proc, sys and dev; tests have another one."""

    node: NodeConfig
    client: ClientConfig
    topology: Topology
    root: Path = Path("/")
    start: Callable[..., Carrier] = Carrier

    def asked(self, kind: str) -> bool:
        """Tell whether the configuration asks for a transport."""
        return kind in self.client.transports or kind in self.node.engines

    def text(self, path: str) -> str:
        """Return what a file says, empty if it cannot be read."""
        try:
            return (self.root / path).read_text(errors="replace").strip()
        except OSError:
            return ""


def all_findings(machine: Machine) -> list[Finding]:
    """Look at everything, the transports first."""
    checks: list[Callable[[Machine], Finding]] = [
        shared_memory,
        tcp,
        nixl,
        mooncake,
        pool_engine,
        locked_memory,
        huge_pages,
        gpu_driver,
        compiled_copies,
        tun,
    ]
    return [check(machine) for check in checks]


# --- transports ---------------------------------------------------------------------------------


def shared_memory(machine: Machine) -> Finding:
    """See whether the node's memory fits where segments are."""
    directory = Path(machine.node.segment_dir or default_segment_dir())
    there = next(each for each in (directory, *directory.parents) if each.exists())
    stat = os.statvfs(there)
    free, total = stat.f_bavail * stat.f_frsize, stat.f_blocks * stat.f_frsize
    found = f"{size_text(free)} free of {size_text(total)} at {there}"
    if not os.access(there, os.W_OK):
        return Finding(
            "shm", BAD, f"{there} cannot be written to", "give segment_dir another place"
        )
    held = sum(512 * each.stat().st_blocks for each in directory.glob("*/*.seg"))
    if machine.node.size > free + held:
        return Finding(
            "shm",
            BAD,
            f"{found}; the node wants {size_text(machine.node.size)}",
            "make size smaller, or the tmpfs larger (mount -o remount,size=...; in a container "
            "--shm-size)",
        )
    return Finding("shm", WELL, found)


def tcp(machine: Machine) -> Finding:
    """See how far the kernel lets TCP windows grow."""
    limits = {}
    for name in ("tcp_rmem", "tcp_wmem"):
        words = machine.text(f"proc/sys/net/ipv4/{name}").split()
        limits[name] = int(words[2]) if len(words) == 3 and words[2].isdecimal() else 0
    if not all(limits.values()):
        return Finding("tcp", NOTE, "the kernel's limits of TCP windows cannot be read")
    found = ", ".join(f"{name} up to {size_text(size)}" for name, size in limits.items())
    if min(limits.values()) < WINDOW_BYTES_MIN:
        return Finding(
            "tcp",
            NOTE,
            found,
            "for hosts that are far from each other raise net.ipv4.tcp_rmem and tcp_wmem "
            f"to {size_text(WINDOW_BYTES_MIN)} or more",
        )
    return Finding("tcp", WELL, found)


def nixl(machine: Machine) -> Finding:
    """See whether NIXL starts here, with which backends."""
    return _engine("nixl", machine)


def mooncake(machine: Machine) -> Finding:
    """See whether Mooncake's TransferEngine starts here."""
    return _engine("mooncake", machine)


MOONCAKE_CANNOT = (
    "cannot: look up without leasing, explain a miss, hand over between engines, tell changes to a "
    "router, drain, pin or unpin what is there, end sessions; parents do not guide its eviction"
)


def pool_engine(machine: Machine) -> Finding:
    """See what kind of pool is asked for, and what that one cannot do."""
    if machine.client.engine == "moonpool":
        return Finding("engine", WELL, "moonpool")
    from moonpool.client.mooncake.store import MooncakeStore
    from moonpool.errors import MoonpoolError

    master = machine.client.ha or machine.client.master
    try:
        with MooncakeStore.of(machine.client, master) as store:
            segments = len(store.status().segments)
    except MoonpoolError as error:
        return Finding("engine", BAD, f"mooncake at {master}: {error}", MOONCAKE_CANNOT)
    found = f"mooncake at {master}, {segments} segments"
    return Finding("engine", NOTE, found, MOONCAKE_CANNOT)


def _engine(kind: str, machine: Machine) -> Finding:
    options = options_for(kind, machine.node, host="127.0.0.1", topology=machine.topology)
    setup = Setup(kind, "doctor", "127.0.0.1", [Region(SCRATCH_BYTES)], options.engine)
    try:
        carrier = machine.start(setup, options.environment)
    except EngineError as error:
        return Finding(kind, BAD if machine.asked(kind) else OFF, str(error))
    backends = ", ".join(carrier.backends)
    carrier.kill()
    nics = [nic.name for nic in machine.topology.rdma()]
    found = f"{_wheel(kind)}: {backends}; RDMA: {', '.join(nics) or 'no device'}"
    if not nics:
        advice = "without RDMA tcp is faster" if machine.asked(kind) else ""
        return Finding(kind, NOTE if machine.asked(kind) else WELL, found, advice)
    return Finding(kind, WELL, found)


def _wheel(kind: str) -> str:
    for name in WHEELS[kind]:
        try:
            return f"{name} {metadata.version(name)}"
        except metadata.PackageNotFoundError:
            continue
    return kind


# --- the host -----------------------------------------------------------------------------------


def locked_memory(machine: Machine) -> Finding:
    """See how much memory may be pinned: RDMA registers segments, GPUs pin them."""
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    if limit == resource.RLIM_INFINITY:
        return Finding("locked memory", WELL, "no limit")
    found = f"at most {size_text(limit)}"
    advice = "ulimit -l unlimited (in a container: --ulimit memlock=-1)"
    if limit >= machine.node.size:
        return Finding("locked memory", WELL, found)
    engines = machine.asked("nixl") or machine.asked("mooncake")
    if engines and machine.topology.rdma():
        return Finding("locked memory", BAD, f"{found}; RDMA registers all segments", advice)
    return Finding("locked memory", NOTE, found, advice if machine.topology.gpus else "")


def huge_pages(machine: Machine) -> Finding:
    """See whether segments in shared memory may have huge pages."""
    chosen = machine.text("sys/kernel/mm/transparent_hugepage/shmem_enabled")
    current = chosen.partition("[")[2].partition("]")[0] or "not known"
    return Finding("huge pages", NOTE, f"transparent, for shared memory: {current}")


def gpu_driver(machine: Machine) -> Finding:
    """See whether there is a GPU and its driver."""
    gpus = [gpu for gpu in machine.topology.gpus if gpu.vendor == "NVIDIA"]
    version = machine.text("proc/driver/nvidia/version").splitlines()
    try:
        ctypes.CDLL("libcuda.so.1")
        library = True
    except OSError:
        library = False
    if not library:
        what = f"{len(gpus)} GPUs, but no libcuda.so.1" if gpus else "no GPU"
        return Finding("GPU driver", BAD if gpus else OFF, what)
    peer = (machine.root / "sys/module/nvidia_peermem").exists()
    found = f"{len(gpus)} GPUs; {version[0] if version else 'libcuda.so.1'}"
    return Finding("GPU driver", WELL, f"{found}; nvidia_peermem {'loaded' if peer else 'absent'}")


def compiled_copies(_machine: Machine) -> Finding:
    """See whether Numba is there, which makes copies fast."""
    if importlib.util.find_spec("numba") is None:
        return Finding("numba", NOTE, "not installed", "pip install 'moonpool[fast]'")
    return Finding("numba", WELL, metadata.version("numba"))


def tun(machine: Machine) -> Finding:
    """See whether network namespaces can be joined, which only tests need."""
    there = (machine.root / "dev/net/tun").exists()
    return Finding("tun", WELL if there else OFF, "/dev/net/tun" if there else "no /dev/net/tun")
