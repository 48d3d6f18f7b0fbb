"""What a simulated fleet consists of."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from moonpool.errors import ConfigError
from moonpool.sim.fleet.master import Prices
from moonpool.sim.fleet.pool import PoolShape
from moonpool.sim.hardware import Hardware

ENGINES_MAX = 100_000


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
    by runs of blocks (RunCache). call_bytes: what one call of a client moves at most.
    counted_tokens: objects of so many tokens are counted in the master's messages, however large
    those of the pool are. shards: masters that share the keys; master_queues: whether
    messages wait for one another at a master.
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
    call_bytes: int = 512 << 20
    counted_tokens: int = 256
    prices: Prices = field(default_factory=Prices)
    shards: int = 1
    master_queues: bool = True

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


def split_of(text: str) -> tuple[int, int, int]:
    """Return engines that do both, that prefill, that decode, of ``8`` or ``2P4D``; raise
    ConfigError."""
    found = re.fullmatch(r"(?:(\d{1,6})[pP](\d{1,6})[dD]|(\d{1,6}))", text.strip())
    numbers = [int(each) for each in found.groups() if each] if found else []
    if not numbers or not all(0 < each <= ENGINES_MAX for each in numbers):
        raise ConfigError(
            f"split: {text!r} is not allowed; allowed: a number of engines, or such as 2P4D"
        )
    return (numbers[0], 0, 0) if len(numbers) == 1 else (0, numbers[0], numbers[1])
