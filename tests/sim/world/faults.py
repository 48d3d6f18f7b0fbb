"""What goes wrong: drawn from the seed, put right again after a while."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from moonpool.errors import MoonpoolError
from tests.sim.world.cluster import Machine
from tests.sim.world.disk import DISKS
from tests.sim.world.hub import Process

if TYPE_CHECKING:
    from tests.sim.world.simulation import Simulation


DRAIN_LOOKS = 20
"""How often it is asked, each half second, whether a drained node is empty."""


class Faults:
    """Does harm while it is allowed to; ``active`` counts what has not been put right."""

    def __init__(self, sim: Simulation) -> None:
        self.sim = sim
        self.active = 0
        self.spells: list[tuple[float, float]] = []
        """When a leader may have been lost: from when to when."""
        self.trouble_until = 0.0
        shape = sim.shape
        kinds: list[tuple[float, Callable[[], None]]] = [
            (3, self.kill_node),
            (3, self.kill_master),
            (3, self.kill_client),
            (1, self.kill_all),
            (2, self.freeze),
            (3, self.cut),
            (5, self.break_stream),
            (1, self.power),
            (1, self.stop_node),
            (1, self.stop_master),
            (1, self.drain_node),
        ]
        if shape.masters > 1:
            kinds += [(2, self.slow_store), (3, self.cut_from_store)]
        if shape.disks:
            kinds.append((2, self.slow_disk))
        self._kinds = [
            each for each in kinds if not shape.faults or each[1].__name__ in shape.faults
        ]

    def plan(self, begin: float, end: float, count: int) -> None:
        """Draw when to do harm."""
        hub = self.sim.hub
        for _ in range(count):
            hub.at(begin + hub.rng.random() * (end - begin), None, self.strike)

    def strike(self) -> None:
        """Do one thing."""
        rng = self.sim.hub.rng
        kind = rng.choices(self._kinds, [weight for weight, _ in self._kinds])[0][1]
        self.sim.count[kind.__name__] += 1
        kind()

    # --- what there is ------------------------------------------------------------------------

    def kill_node(self) -> None:
        self._kill(self.sim.hub.rng.choice(self.sim.cluster.nodes))

    def kill_master(self) -> None:
        self._kill(self.sim.hub.rng.choice(self.sim.cluster.masters))

    def kill_client(self) -> None:
        rng = self.sim.hub.rng
        clients = [each for each in self.sim.clients if each.process.alive and not each.done]
        if clients:
            rng.choice(clients).process.kill()
            self.sim.hub.at(self.sim.hub.now + rng.random(), None, self.sim.start_client)

    def kill_all(self) -> None:
        for machine in (*self.sim.cluster.masters, *self.sim.cluster.nodes):
            self._kill(machine)

    def stop_node(self) -> None:
        """A node that is stopped takes its memory with it."""
        cluster, hub = self.sim.cluster, self.sim.hub
        machine = hub.rng.choice(cluster.nodes)
        self.sim.note_power_loss(machine.name)
        cluster.stop(machine)
        # What is put while it ends may be lost with it as well.
        self._for(2.0 + hub.rng.random(), lambda: self._start_again(machine))

    def _start_again(self, machine: Machine) -> None:
        if machine in self.sim.cluster.nodes:
            self.sim.note_power_loss(machine.name)
        if machine.process is not None:
            machine.process.kill()
        self.sim.cluster.start(machine)

    def drain_node(self) -> None:
        """Drain a node and stop it once it is said to be empty: that must cost nothing."""
        sim = self.sim
        if len(sim.cluster.nodes) < 2:
            return
        machine = sim.hub.rng.choice(sim.cluster.nodes)
        process = Process(sim.hub, f"d{sim.hub.number()}", "far")
        self.active += 1

        def run() -> None:
            try:
                self._drain(process, machine)
            except MoonpoolError as error:
                sim.hub.note(f"drain {machine.name}: {error!r}")
            self.active -= 1
            sim.disturbed()
            process.kill()

        sim.hub.spawn(process, run, "drain")

    def _drain(self, process: Process, machine: Machine) -> None:
        hub, cluster = self.sim.hub, self.sim.cluster
        with cluster.connect(process.name, ("tcp",), timeout_s=2.0) as store:
            store.drain_node(machine.name)
            hub.note(f"drain {machine.name}")
            for _ in range(DRAIN_LOOKS):
                hub.park(0.5)
                drains = store.status().drains
                if any(each.node == machine.name and each.empty for each in drains):
                    break
            else:
                store.drain_node(machine.name, on=False)
                self.sim.count["drains given up"] += 1
                return
        self.sim.count["drained"] += 1
        cluster.stop(machine)
        hub.park(1.5)
        if machine.process is not None:
            machine.process.kill()
        cluster.start(machine)

    def stop_master(self) -> None:
        cluster, hub = self.sim.cluster, self.sim.hub
        machine = hub.rng.choice(cluster.masters)
        cluster.stop(machine)
        self._for(1.0 + hub.rng.random(), lambda: self._start_again(machine), leader=True)

    def power(self) -> None:
        cluster = self.sim.cluster
        machine = self.sim.hub.rng.choice(cluster.nodes)
        self.sim.note_power_loss(machine.name)
        for client in self.sim.clients:
            if client.process.host == machine.name:
                client.process.kill()
        self._kill(machine, lambda: cluster.lose_power(machine))

    def freeze(self) -> None:
        rng = self.sim.hub.rng
        machines = [*self.sim.cluster.masters, *self.sim.cluster.nodes]
        processes = [each.process for each in machines if each.process is not None and each.up]
        processes += [each.process for each in self.sim.clients if each.process.alive]
        if processes:
            seconds = rng.choice((0.05, 0.5, 2.0, 6.0)) * rng.random()
            process: Process = rng.choice(processes)
            process.freeze(seconds)
            self._for(seconds, leader=process.name.startswith("m"))

    def cut(self) -> None:
        rng, cluster = self.sim.hub.rng, self.sim.cluster
        hosts = sorted({*cluster.hosts, *(each.process.host for each in self.sim.clients)})
        rng.shuffle(hosts)
        split = rng.randint(1, max(1, len(hosts) // 2))
        seconds = rng.choice((0.1, 1.0, 3.0, 14.0)) * rng.random()
        self.sim.net.cut(hosts[:split], hosts[split:], seconds)
        self._for(seconds, leader=True)

    def cut_from_store(self) -> None:
        """Cut the leader, which everybody else still reaches, from the store of the election."""
        rng, cluster = self.sim.hub.rng, self.sim.cluster
        service = cluster.leading()
        for machine in cluster.masters:
            lead = machine.parts.get("lead")
            if lead is not None and service is not None and lead.term is service:
                seconds = 1.0 + 6.0 * rng.random()
                self.sim.net.cut([machine.name], [cluster.register.host], seconds)
                self._for(seconds, leader=True)

    def break_stream(self) -> None:
        rng, cluster = self.sim.hub.rng, self.sim.cluster
        machines = (*cluster.masters, *cluster.nodes)
        processes = [each.process for each in machines if each.process is not None and each.up]
        self.sim.net.break_one(rng.choice, processes)
        self._for(0.0)

    def slow_store(self) -> None:
        rng, register = self.sim.hub.rng, self.sim.cluster.register
        register.slow_s, register.lose = rng.random() * 3.0, rng.random() * 0.5
        self._for(rng.random() * 6.0, self._store_well, leader=True)

    def _store_well(self) -> None:
        self.sim.cluster.register.slow_s, self.sim.cluster.register.lose = 0.02, 0.0

    def slow_disk(self) -> None:
        rng = self.sim.hub.rng
        for disk in DISKS.values():
            disk.slow = rng.choice((10.0, 100.0, 1000.0))
        self._for(rng.random() * 3.0, self._disks_well)

    @staticmethod
    def _disks_well() -> None:
        for disk in DISKS.values():
            disk.slow = 1.0

    # --- how it is put right ------------------------------------------------------------------

    def _kill(self, machine: Machine, how: Callable[[], None] | None = None) -> None:
        rng = self.sim.hub.rng
        leader = machine in self.sim.cluster.masters
        if how is not None:
            how()
        elif machine.process is not None:
            machine.process.kill()
        again = rng.random() * 2.0
        self._for(again, lambda: self.sim.cluster.start(machine), leader=leader)

    def _for(
        self,
        seconds: float,
        after: Callable[[], None] = lambda: None,
        *,
        leader: bool = False,
    ) -> None:
        self.active += 1
        if leader:
            self.spells.append((self.sim.hub.now, self.sim.hub.now + seconds))
        self.trouble_until = max(self.trouble_until, self.sim.hub.now + seconds)

        def over() -> None:
            self.active -= 1
            after()
            self.sim.disturbed()

        self.sim.hub.at(self.sim.hub.now + seconds, None, over)
