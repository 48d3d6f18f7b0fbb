"""What goes wrong when: from a seed alone, so that a run can be had again."""

from __future__ import annotations

import random
from dataclasses import dataclass

ACTS = 8
"""Times in a round that something goes wrong and is put right again."""
NODES = 3
CLIENTS = 4
DISK_NODE = 1
"""The node that has an SSD tier."""

ALONE = (
    "kill everything",
    "kill nodes and clients",
    "corrupt segment",
    "corrupt header",
    "corrupt disk",
    "reboot node",
    "drain and reboot node",
)
"""Faults that come alone: what they may cost has to be known exactly, or nothing is left."""
GROUPS: dict[str, tuple[str, ...]] = {
    "client": ("kill client", "stop client", "cut client"),
    "node": ("kill node", "stop node", "cut node", "drain node"),
    "master": ("kill leader", "stop leader", "cut leader"),
    "network": ("delay", "loss", "delay and loss"),
    "disk": ("fill disk",),
}
WITH_ETCD = ("kill masters", "cut leader from etcd", "stop etcd", "kill etcd")
"""Of the masters' group, where there are several."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault: ``target`` is a client's or node's number, or a host's for the network's; it lasts
    for ``seconds``. ``seed`` is for what else is chosen."""

    kind: str
    target: int
    seconds: float
    seed: int

    def __str__(self) -> str:
        return f"{self.kind} {self.target} for {self.seconds:.1f} s"


@dataclass(frozen=True, slots=True)
class Round:
    """A cluster's life. ``tight``: memory holds less than what is put, so that objects are evicted;
    else nothing is, and whatever was kept has to stay."""

    number: int
    masters: int
    tight: bool
    policy: str
    acts: tuple[tuple[Fault, ...], ...]

    def lines(self) -> list[str]:
        """Return the schedule for people."""
        kind = f"masters {self.masters}, {'tight' if self.tight else 'roomy'}, disk {self.policy}"
        acts = [" + ".join(map(str, act)) for act in self.acts]
        return [f"round {self.number}: {kind}", *(f"  {i}. {a}" for i, a in enumerate(acts, 1))]


def kinds(masters: int) -> list[str]:
    """Return all faults that there can be."""
    several = WITH_ETCD if masters > 1 else ()
    return [*ALONE, *(kind for group in GROUPS.values() for kind in group), *several]


def plan(seed: int, number: int, *, etcd: bool = True, acts: int = ACTS) -> Round:
    """Return a round of a seed. The first has several masters where there is an etcd."""
    chance = random.Random(f"{seed}/{number}")
    masters = 3 if etcd and number % 3 != 2 else 1
    tight = number % 4 == 3
    return Round(
        number,
        masters,
        tight,
        "on-evict" if tight else "write-through",
        tuple(_act(chance, kind, masters) for kind in _leading(seed, number, masters, acts)),
    )


def _leading(seed: int, number: int, masters: int, acts: int) -> list[str]:
    """Return the acts' first faults: rounds deal on from decks of all kinds, so that each comes up
    as often as any other."""
    every = kinds(3)
    found = []
    for place in range(number * acts, (number + 1) * acts):
        deck = random.Random(f"{seed}/deck/{place // len(every)}").sample(every, len(every))
        kind = deck[place % len(every)]
        found.append("kill leader" if masters == 1 and kind in WITH_ETCD else kind)
    return found


def group_of(kind: str) -> str:
    """Return which part of the cluster a fault is about; empty for those that come alone."""
    found = [name for name, group in GROUPS.items() if kind in group]
    return found[0] if found else "master" if kind in WITH_ETCD else ""


def _act(chance: random.Random, kind: str, masters: int) -> tuple[Fault, ...]:
    first = _fault(chance, kind)
    if kind in ALONE or chance.random() < 0.5:
        return (first,)
    others = [k for k in kinds(masters) if k not in ALONE and group_of(k) != group_of(kind)]
    return first, _fault(chance, chance.choice(others))


def _fault(chance: random.Random, kind: str) -> Fault:
    # A put is given up after 5 s, a leader after 3 s, a call after 2 s: on both sides of each.
    seconds = chance.uniform(0.2, 6.0) if chance.random() < 0.85 else chance.uniform(6.0, 12.0)
    target = chance.randrange(CLIENTS if "client" in kind else NODES)
    if kind == "corrupt disk":
        target = DISK_NODE
    return Fault(kind, target, seconds, chance.randrange(1 << 32))
