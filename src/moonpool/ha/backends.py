"""From the configuration to a store of elections."""

from __future__ import annotations

from moonpool.config_ha import ElectionStore
from moonpool.ha.backend import Backend
from moonpool.ha.etcd import EtcdBackend
from moonpool.ha.kubernetes import LeaseBackend


def backend_for(store: ElectionStore) -> Backend:
    """Return the store. Raises ConfigError where it cannot be reached from here at all."""
    return EtcdBackend(store) if store.kind == "etcd" else LeaseBackend.in_cluster(store)
