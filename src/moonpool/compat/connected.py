"""What a program has between ``setup`` and ``close``: the pool, its tenant and what it lends."""

from __future__ import annotations

import os
import threading
import uuid
from dataclasses import dataclass, field

from moonpool import config
from moonpool.client.store import Store
from moonpool.compat.casting import U64_MAX
from moonpool.compat.keys import KeySpace
from moonpool.compat.leases import Leases
from moonpool.compat.lending import Lent, lend, pick_name
from moonpool.compat.replicate import ReplicateConfig, preferences
from moonpool.core.tenants import DEFAULT_TENANT
from moonpool.errors import MasterUnreachableError, MoonpoolError

PUT_TIMEOUT_S = 0.25
"""How long a put of the Mooncake API waits for space: its callers expect -200 soon."""


@dataclass(frozen=True)
class Setup:
    """The arguments of ``setup``. Sizes are bytes."""

    local_hostname: str
    metadata_server: str
    global_segment_size: int
    local_buffer_size: int
    protocol: str
    rdma_devices: str
    master_server_addr: str
    tenant_id: str = DEFAULT_TENANT


@dataclass
class Connected:
    """A connection to a pool."""

    setup: Setup
    store: Store
    name: str
    keys: KeySpace
    leases: Leases
    lent: dict[tuple[str, str], Lent] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def lend(self, nbytes: int, name: str = "", kind: str = "setup") -> str:
        """Give memory to the pool; return the segment's id. Raises MoonpoolError."""
        lent = lend(name or pick_name(self.host), nbytes, self.setup.master_server_addr)
        number = uuid.uuid4().int
        named = f"{number >> 64}-{number & U64_MAX}"
        with self.lock:
            self.lent[kind, named] = lent
        return named

    def take_back(self, number: str, kind: str) -> bool:
        """End a lent segment of a kind; its objects go. Return whether there is one of this id."""
        with self.lock:
            lent = self.lent.pop((kind, number), None)
        if lent is None:
            return False
        lent.close()
        return True

    @property
    def host(self) -> str:
        """The host part of this client's name."""
        return self.name.rpartition(":")[0]

    def preferred(self, config: ReplicateConfig) -> str:
        """Return the first of the preferred segments that is there, or nothing."""
        wanted = preferences(config)
        if len(wanted) < 2:
            return wanted[0] if wanted else ""
        there = {each.info.node for each in self.store.status().segments}
        return next((each for each in wanted if each in there), "")

    def close(self) -> None:
        """Give everything back."""
        for kind, number in [*self.lent]:
            self.take_back(number, kind)
        self.store.close()


def connect(setup: Setup) -> Connected:
    """Connect and lend what is to be lent. Raises MoonpoolError."""
    name = pick_name(setup.local_hostname)
    patience = float(os.environ.get("MOONPOOL_CLIENT_PUT_TIMEOUT_S", "") or PUT_TIMEOUT_S)
    if not setup.master_server_addr:
        raise MasterUnreachableError("no master is named")
    store = Store.connect(
        setup.master_server_addr,
        name="mooncake-api",
        engine="moonpool",
        transports=config.load(config.ClientConfig).transports,
        put_timeout_s=patience,
    )
    try:
        lookups = os.environ.get("MOONPOOL_COMPAT_EXIST_LEASE", "1") not in ("0", "false", "no")
        leases = Leases(store, store.looking.kv_lease_s, lookups=lookups)
        store.looking.lease_for(max(leases.ttl_s, 0.001))
        found = Connected(setup, store, name, KeySpace(setup.tenant_id), leases)
        if setup.global_segment_size:
            found.lend(setup.global_segment_size, name)
    except BaseException:
        store.close()
        raise
    return found


def is_reachable(connected: Connected) -> bool:
    """Tell whether the master answers."""
    try:
        connected.store.status()
    except MoonpoolError:
        return False
    return True
