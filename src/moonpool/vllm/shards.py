"""How tensor parallelism splits an object: by ranges of KV heads, whatever the number of ranks.

Each worker of an engine holds the blocks of some KV heads. An object is stored as so many shards,
each of the same number of heads, and can be loaded when all shards are there. Engines share
objects if they have the same number of shards, not of workers: with four shards, one worker holds
four, each of two workers two, each of four one. Where several workers hold the same heads (more
workers than heads, or latent attention, which has one for all), each saves a part of the objects.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from moonpool.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Held:
    """A shard that a worker holds: its name, and where its heads are in the worker's tensors."""

    name: str
    first_head: int
    heads: int


@dataclass(frozen=True, slots=True)
class Split:
    """heads: KV heads of the model; workers: of the engine; count: shards of an object."""

    heads: int = 1
    workers: int = 1
    count: int = 1

    @classmethod
    def of(cls, heads: int, workers: int, wanted: int = 0) -> Split:
        """Return the split; raise ConfigError for one that does not come out even.

        wanted: the number of shards, 0: as few as there can be.
        """
        least = min(heads, workers)
        if max(heads, workers) % least:
            raise ConfigError(
                f"MoonpoolConnector does not support tensor parallelism of {workers} with {heads} "
                "KV heads: a worker would hold parts of heads; set tensor_parallel_size to a "
                "number that divides the other or is divided by it"
            )
        count = wanted or least
        if count % least or heads % count:
            raise ConfigError(
                f"head_shards: {count} is not allowed with {heads} KV heads and "
                f"tensor_parallel_size {workers}; it must divide {heads} and be a multiple of "
                f"{least}"
            )
        return cls(heads, workers, count)

    @property
    def names(self) -> tuple[str, ...]:
        """The shards; "" if there is only one."""
        if self.count == 1:
            return ("",)
        return tuple(f"{at}/{self.count}" for at in range(self.count))

    def held_by(self, rank: int) -> list[Held]:
        """Return the shards of a worker."""
        each = self.heads // self.count
        own = max(1, self.heads // self.workers)
        first = rank * self.heads // self.workers if self.workers > self.heads else rank * own
        return [
            Held(self.names[at], at * each - first, each)
            for at in range(first // each, (first + own) // each)
        ]

    def turn(self, rank: int) -> tuple[int, int]:
        """Return which of the workers with the same heads this is, and of how many."""
        alike = max(1, self.workers // self.heads)
        return rank % alike, alike


WHOLE = Split()


def narrowed(caches: Mapping[str, Any], names: tuple[str, ...], held: Held) -> dict[str, Any]:
    """Return layers' tensors [blocks, heads, tokens, content] with the heads of a shard only.

    Raises ConfigError for tensors of other dimensions.
    """
    found: dict[str, Any] = {}
    for name in names:
        cache = caches[name]
        if len(getattr(cache, "shape", ())) != 4 or held.first_head + held.heads > cache.shape[1]:
            raise ConfigError(
                f"KV layout: layer {name} has no dimension of heads to split; tensor parallelism "
                "and head_shards need vLLM 0.29 or newer"
            )
        found[name] = cache.narrow(1, held.first_head, held.heads)
    return found
