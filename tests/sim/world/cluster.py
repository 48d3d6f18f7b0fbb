"""Masters, nodes and clients of a simulated pool: started, killed, started again."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from moonpool.client.store import Store
from moonpool.config import MasterConfig, NodeConfig
from moonpool.core.master import MasterState
from moonpool.master import daemon as master_daemon
from moonpool.master.service import Service
from moonpool.node import daemon as node_daemon
from tests.sim.world.disk import DISKS
from tests.sim.world.election import Register, SimBackend
from tests.sim.world.hub import Hub, Process, hub
from tests.sim.world.loop import Loop
from tests.sim.world.network import Network

MIB = 1 << 20
MASTER_PORT = 50_051
NODE_PORT = 50_053
ROOM = Path("/dev/shm")


@dataclass(frozen=True)
class Shape:
    """What a simulated pool is made of."""

    masters: int = 1
    nodes: int = 2
    clients: int = 2
    store: str = ""
    boards: bool = True
    digests: bool = False
    """Whether keys are digests, as engines' are, or names."""
    disks: bool = False
    policy: str = "on-evict"
    drift: float = 0.02
    delay_s: float = 0.004
    lease_s: float = 1.5
    put_timeout_s: float = 2.0
    sizes: tuple[int, ...] = (60, 3000, 9000, 30_000, 70_000, 150_000, 260_000)
    pause: float = 0.02
    think_s: float = 0.15
    copied: float = 0.15
    """The share of puts that want two copies."""
    harm: int = -1
    """How many faults; negative: as drawn."""
    faults: tuple[str, ...] = ()
    """Which may happen; empty: all."""


@dataclass
class Machine:
    """A process that is to run, and the one that does."""

    name: str
    start: Callable[[Machine], None]
    process: Process | None = None
    parts: dict[str, Any] = field(default_factory=dict)

    @property
    def up(self) -> bool:
        return self.process is not None and self.process.alive


class Cluster:
    """The processes of a pool."""

    def __init__(self, hub_: Hub, net: Network, shape: Shape) -> None:
        self.hub = hub_
        self.net = net
        self.shape = shape
        self.register = Register()
        self.services: list[Service] = []
        self.root = Path(tempfile.mkdtemp(prefix="moonpool-sim-", dir=ROOM))
        self.masters = [Machine(f"m{i}", self._start_master) for i in range(shape.masters)]
        self.nodes = [Machine(f"n{i}", self._start_node) for i in range(shape.nodes)]
        DISKS.clear()

    @property
    def hosts(self) -> list[str]:
        """All hosts of masters and nodes, and the store's."""
        return [each.name for each in (*self.masters, *self.nodes)] + [Register.host]

    @property
    def address(self) -> str:
        """Where followers look for the master."""
        if self.shape.store:
            return self.shape.store
        return ",".join(f"{each.name}:{MASTER_PORT}" for each in self.masters)

    def start(self, machine: Machine) -> None:
        """Start a process, unless it runs."""
        if not machine.up:
            machine.process = Process(self.hub, machine.name, machine.name)
            machine.parts = {}
            self.hub.note(f"start {machine.name}")
            machine.start(machine)

    def close(self) -> None:
        """Leave nothing behind."""
        for machine in (*self.masters, *self.nodes):
            if machine.process is not None:
                machine.process.kill()
        shutil.rmtree(self.root, ignore_errors=True)

    def stop(self, machine: Machine) -> None:
        """End a process as SIGTERM does."""
        if machine.up and machine.parts:
            self.hub.note(f"stop {machine.name}")
            machine.parts["main"].cancel()

    def lose_power(self, machine: Machine) -> None:
        """Take a node's machine down, with its memory and what its disk had not yet kept."""
        if machine.process is not None:
            machine.process.kill()
        shutil.rmtree(self.root / machine.name, ignore_errors=True)
        disk = DISKS.get(machine.name)
        lost = 0 if disk is None else disk.lose_power()
        self.hub.note(f"power {machine.name} {lost}")

    def home(self) -> str:
        """Return the directory in the shared memory of the running process's host."""
        process = self.hub.process
        assert process is not None
        return str(self.root / process.host)

    # --- what is so ---------------------------------------------------------------------------

    def leading(self) -> Service | None:
        """Return the service that answers now, None if there is none or more than one."""
        found = []
        for machine in self.masters:
            process = machine.process
            if process is None or not process.alive:
                continue
            lead, service = machine.parts.get("lead"), machine.parts.get("service")
            if lead is not None:
                service = lead.term
                if service is None or lead.election.epoch(process.monotonic()) != service.epoch:
                    continue
            if service is not None:
                found.append(service)
        return found[0] if len(found) == 1 else None

    def state(self) -> MasterState | None:
        """Return the leader's state."""
        service = self.leading()
        return None if service is None else service.state

    def is_whole(self) -> bool:
        """Tell whether a leader has all segments, ready."""
        state = self.state()
        if state is None or not all(each.up for each in self.nodes):
            return False
        segments = state.state.segments.by_handle.values()
        ready = {each.info.node for each in segments if each.ready}
        disks = len(state.state.disks.by_handle) if self.shape.disks else 0
        return len(ready) == len(self.nodes) and disks == self.shape.disks * len(self.nodes)

    # --- starting -----------------------------------------------------------------------------

    def _start_master(self, machine: Machine) -> None:
        board = self.root / machine.name
        config = MasterConfig(
            host=machine.name,
            port=MASTER_PORT,
            http_port=9003,
            board_dir=str(board) if self.shape.boards else "/proc/none",
            ha="etcd://etcd:2379" if self.shape.masters > 1 else "",
            ha_lease=self.shape.lease_s,
            put_timeout_s=self.shape.put_timeout_s,
        )
        how = master_daemon.serving_in_turn if config.ha else master_daemon.serving

        async def run() -> None:
            async with how(config):
                await asyncio.Event().wait()

        self._run(machine, run())

    def _start_node(self, machine: Machine) -> None:
        shape = self.shape
        config = NodeConfig(
            name=machine.name,
            master=self.address if not shape.store else "unused:1",
            ha=shape.store,
            host=machine.name,
            port=NODE_PORT,
            size=MIB,
            segment_dir=str(self.root / machine.name),
            touch_ahead=False,
            ssd="disk" if shape.disks else "",
            ssd_size=16 * MIB,
            ssd_policy=shape.policy,
        )

        async def run() -> None:
            async with node_daemon.serving(config) as running:
                machine.parts["running"] = running
                await running.session

        self._run(machine, run())

    def _run(self, machine: Machine, main: Coroutine[Any, Any, None]) -> None:
        process = machine.process
        assert process is not None
        process.parts = machine.parts
        machine.parts["main"] = task = Loop(self.hub, process).start(main, "main")
        # Its end closes what its system has of it.
        task.add_done_callback(lambda _task: self.hub.soon(None, process.kill))

    def connect(self, name: str, ways: tuple[str, ...], **options: Any) -> Store:
        """Return a store, in a thread of a client's process."""
        return Store.connect(self.address, name=name, transports=ways, token="", **options)


def backend_for(cluster: Cluster) -> SimBackend:
    """As ha.backends."""
    process = hub().process
    assert process is not None
    return SimBackend(cluster.register, process)
