"""What can be set about the master's state machine."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from moonpool.core.eviction import DEFAULT, POLICIES
from moonpool.errors import ConfigError

_MAY_BE_0 = frozenset({"copy_rate", "hot_reads_per_s", "hot_copies_max"})


@dataclass(frozen=True, slots=True)
class MasterConfig:
    """Limits and times; sizes are bytes, times seconds."""

    watermark_high: float = 0.95
    """Fill ratio above which Tick evicts."""
    watermark_low: float = 0.90
    """Fill ratio down to which Tick evicts."""
    put_timeout_s: float = 30.0
    """A put not ended by then is discarded; its key may be put again."""
    retry_after_s: float = 0.05
    """What a put that must wait for space is told."""
    lease_s_max: float = 600.0
    """Longer leases are cut to this."""
    kv_lease_s: float = 10.0
    """What clients of the Mooncake API are told to lease for; others lease as they like."""
    soft_pin_s: float = 1800.0
    """How long a soft pin lasts whose put did not say."""
    soft_pin_s_max: float = 86_400.0
    hard_pin_share: float = 0.5
    """Share of the pool's bytes that may be pinned for good."""
    evict_soft_pinned: bool = True
    """Whether eviction may take soft-pinned objects where nothing else is left."""
    tenants: bool = False
    """Whether only registered tenants of the Mooncake API may put, each within its quota."""
    eviction: str = DEFAULT
    """The policy that says what goes first: one of POLICIES."""
    leases_per_peer_max: int = 65_536
    lease_objects_per_peer_max: int = 1 << 20
    pending_bytes_max: int = 1 << 40
    """Space that one client may have in puts not yet ended."""
    replicas_max: int = 8
    removed_keys_max: int = 65_536
    """Removed keys that are remembered, for nodes that did not hear of it in time."""
    evictions_per_tick_max: int = 1024
    """Bounds how long one Tick keeps other requests waiting."""
    recent_ends_max: int = 16_384
    """Ended puts remembered, up to twice as many: a repeated PutEnd is answered like the first."""
    absent_claims_max: int = 65_536
    """Slots remembered that unfinished puts hold on nodes that are away."""
    list_scan_max: int = 65_536
    """Objects looked at for one page of List."""
    waiters_max: int = 65_536
    waiters_per_peer_max: int = 8_192
    waiter_bytes_max: int = 1 << 26
    """Of the keys of all that wait; a quarter of it for one peer."""
    await_s_max: float = 30.0
    """Longer waits are cut to this."""
    handoffs_max: int = 65_536
    handoff_keep_s: float = 60.0
    """How long the end of a handoff is remembered, and an open one of which nothing is heard."""
    handoff_grace_s: float = 2.0
    """How long a prefill engine may be without a connection before its handoffs have failed."""

    copy_rate: float = 1e9
    """Bytes a second of copies from node to node; 0: any."""
    copy_burst_s: float = 0.25
    """For so long they may make up for what they did not use."""
    copy_bytes_max: int = 64 << 20
    """Bytes of copies on their way to and from one node, and at most an object more."""
    copy_timeout_s: float = 60.0
    """A copy of which nothing is heard for so long is begun anew."""
    copy_retry_s: float = 1.0
    """When to look again at an object that could not be copied."""
    hot_reads_per_s: float = 20.0
    """An object that is read more often is copied to more hosts; 0: never."""
    hot_copies_max: int = 2
    """To so many more."""
    repair_after_s: float = 5.0
    """How long a host may be away before what it had is copied elsewhere."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, bool | str):
                continue
            if not math.isfinite(value) or value < 0 or (not value and field.name not in _MAY_BE_0):
                raise ConfigError(f"{field.name} = {value}: must be above 0")
        if self.eviction not in POLICIES:
            raise ConfigError(f"eviction = {self.eviction!r}: one of {', '.join(POLICIES)}")
        if self.soft_pin_s > self.soft_pin_s_max:
            raise ConfigError(f"soft_pin_s = {self.soft_pin_s}: at most {self.soft_pin_s_max}")
        if not self.watermark_low <= self.watermark_high <= 1:
            raise ConfigError(
                f"watermark_low = {self.watermark_low}, watermark_high = {self.watermark_high}: "
                "must be in order, and at most 1"
            )
