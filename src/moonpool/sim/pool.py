"""The pool as a model: which blocks it has, on which host, and how long loading them takes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from moonpool.sim.hardware import Hardware


class Channel:
    """A way for bytes that serves one transfer after the other."""

    def __init__(self, gb_s: float) -> None:
        self._bytes_per_s = gb_s * 1e9
        self._free_s = 0.0

    def send(self, now_s: float, nbytes: int) -> float:
        """Return when a transfer ends that is asked for now."""
        self._free_s = max(now_s, self._free_s) + nbytes / self._bytes_per_s
        return self._free_s


class PoolModel:
    """Blocks by host. When a host is full the least recently used go first, leaves before the
    blocks they hang on. A block lies on the host that computed it."""

    def __init__(self, hosts: int, blocks_per_host: int, hardware: Hardware) -> None:
        self.loaded_blocks = 0
        self.remote_blocks = 0
        self._hardware = hardware
        self._blocks = blocks_per_host
        self._host: dict[int, int] = {}
        self._kept: list[dict[int, None]] = [{} for _ in range(hosts)]
        self._network = [Channel(hardware.network_gb_s) for _ in range(hosts)]

    def match(self, keys: Sequence[int]) -> int:
        """Return how many leading blocks the pool has."""
        host = self._host
        for place, key in enumerate(keys):
            if key not in host:
                return place
        return len(keys)

    def hosts_of(self, keys: Sequence[int]) -> dict[int, int]:
        """Return how many of these blocks each host has."""
        counts: dict[int, int] = {}
        for key in keys:
            if (at := self._host.get(key)) is not None:
                counts[at] = counts.get(at, 0) + 1
        return counts

    def load(
        self, now_s: float, keys: Sequence[int], block_bytes: int, host: int, way: Channel
    ) -> float:
        """Return when blocks that are loaded to a host, over an engine's own way, are there."""
        counts = self.hosts_of(keys)
        ends = way.send(now_s, len(keys) * block_bytes)
        for source, count in counts.items():
            if source != host:
                self.remote_blocks += count
                ends = max(ends, self._network[source].send(now_s, count * block_bytes))
        self.loaded_blocks += len(keys)
        self._touch(keys)
        return ends + self._hardware.load_latency_s

    def put(self, keys: Sequence[int], host: int) -> None:
        """Keep a prompt's blocks; those that are there already stay where they are."""
        kept = self._kept[host]
        for key in keys:
            if key not in self._host:
                self._host[key] = host
                kept[key] = None
        self._touch(keys)
        if len(kept) > self._blocks:
            for key in list(islice(kept, len(kept) - self._blocks)):
                del kept[key], self._host[key]

    def _touch(self, keys: Sequence[int]) -> None:
        for key in reversed(keys):
            if (at := self._host.get(key)) is not None:
                kept = self._kept[at]
                del kept[key]
                kept[key] = None
