"""What a simulated fleet consists of."""

from __future__ import annotations

from dataclasses import dataclass, field

from moonpool.errors import ConfigError
from moonpool.sim.fleet.master import Prices
from moonpool.sim.fleet.pool import PoolShape
from moonpool.sim.hardware import Hardware

PD_POLICIES = ("round_robin", "least_loaded", "session", "prefix")


@dataclass(frozen=True, slots=True)
class Group:
    """So many engines of one kind. hosts_each: hosts that one fills, or the share of one."""

    engines: int
    hardware: Hardware
    hosts_each: float = 1.0
    gpus_each: int = 1


@dataclass(frozen=True, slots=True)
class FleetShape:
    """Engines that do both, or that prefill and that decode; ``pool`` None for none.

    nic_gb_s: each host's network, in each direction; ssd_gb_s: what its disks read.
    load_copies: how often a load crosses the network: as often as there are GPUs where each must
    have all of the KV (latent attention under tensor parallelism). runs: whether engines' caches go
    by runs of blocks (RunCache).
    shards: masters that share the keys.
    """

    both: Group | None = None
    prefill: Group | None = None
    decode: Group | None = None
    pool: PoolShape | None = None
    policy: str = "round_robin"
    block_tokens: int = 64
    nic_gb_s: float = 50.0
    ssd_gb_s: float = 6.0
    load_copies: int = 1
    runs: bool = False
    prices: Prices = field(default_factory=Prices)
    shards: int = 1

    def __post_init__(self) -> None:
        if (self.both is None) == (self.prefill is None or self.decode is None):
            raise ConfigError("fleet: engines that do both, or engines for prefill and for decode")

    @property
    def groups(self) -> list[Group]:
        """All engines."""
        return [each for each in (self.both, self.prefill, self.decode) if each is not None]

    @property
    def gpus(self) -> int:
        """GPUs of all engines."""
        return sum(each.engines * each.gpus_each for each in self.groups)
