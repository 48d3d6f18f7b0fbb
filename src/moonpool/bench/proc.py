"""What /proc says of processes and of the machine."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

TICKS_S = os.sysconf("SC_CLK_TCK")


def cpu_s(pids: Iterable[int]) -> float:
    """Return the processor time that the processes have used, in ticks of 10 ms; 0 of dead ones."""
    ticks = 0
    for pid in pids:
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            continue
        fields = stat.rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / TICKS_S


def private_bytes(pid: int) -> int:
    """Return the memory that a process has to itself: resident, neither shared nor of files."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return 0


@dataclass(frozen=True, slots=True)
class Machine:
    """A moment of the whole machine's processors."""

    total: int
    idle: int

    @classmethod
    def now(cls) -> Machine:
        """Return the counters of this moment."""
        fields = [int(n) for n in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
        return cls(sum(fields), fields[3] + fields[4])

    def busy_until(self, later: Machine) -> float:
        """Return the share of all processors that was in use until a later moment."""
        total = later.total - self.total
        return 1 - (later.idle - self.idle) / total if total else 0.0


class Usage:
    """Processor seconds of each role's processes, added up over what is measured."""

    def __init__(self, roles: dict[str, list[int]]) -> None:
        self.roles = roles
        self.seconds = dict.fromkeys(roles, 0.0)
        self._began = dict.fromkeys(roles, 0.0)

    def begin(self) -> None:
        """Start a measurement."""
        self._began = {role: cpu_s(pids) for role, pids in self.roles.items()}

    def end(self) -> None:
        """End it."""
        for role, pids in self.roles.items():
            self.seconds[role] += cpu_s(pids) - self._began[role]


def idle_share(roles: dict[str, list[int]], seconds: float) -> dict[str, float]:
    """Return the share of a core that each role uses while nothing is asked of it."""
    before = {role: cpu_s(pids) for role, pids in roles.items()}
    began = time.monotonic()
    time.sleep(seconds)
    passed = time.monotonic() - began
    return {role: (cpu_s(pids) - before[role]) / passed for role, pids in roles.items()}
