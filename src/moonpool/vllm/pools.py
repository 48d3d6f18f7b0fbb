"""How the connector opens the pool. Imports nothing of vLLM: the mover's process uses it too."""

from __future__ import annotations

from moonpool.transport.base import Copier
from moonpool.vllm.link import Pool
from moonpool.vllm.settings import Settings

LOOKUP_TIMEOUT_S = 1.0
"""A master that takes longer is left alone for a while; the engine's steps wait much less."""
TRANSFER_TIMEOUT_S = 5.0
GPU_BYTES_AT_ONCE = 1 << 30
"""More than a call of the loading and saving threads moves: none is cut."""


def open_pool(chosen: Settings, name: str, timeout_s: float, copier: Copier | None = None) -> Pool:
    """Return a Store connected to the master; raises MoonpoolError while there is none.

    timeout_s: of a request to the master; copier: reaches the engine's memory if it is a GPU's.
    """
    from moonpool.client.store import Store

    store = Store.connect(
        chosen.master,
        name=name,
        transports=chosen.transports,
        timeout_s=timeout_s,
        put_near=chosen.save_near,
        verify=chosen.verify_loads,
        copier=copier,
        engine=chosen.engine or None,
    )
    if copier is not None:
        store.move_at_once(GPU_BYTES_AT_ONCE)
    return store
