"""From the configuration to a store of elections."""

from __future__ import annotations

from moonpool.config_ha import ElectionStore
from moonpool.ha.backend import Backend


def backend_for(store: ElectionStore) -> Backend:
    """Return the store. Raises ConfigError where it cannot be reached from here at all."""
    # A lone master needs neither, and what they import takes a third of its start.
    if store.kind == "etcd":
        from moonpool.ha.etcd import EtcdBackend

        return EtcdBackend(store)
    from moonpool.ha.kubernetes import LeaseBackend

    return LeaseBackend.in_cluster(store)
