"""``mooncake.async_store``."""

from moonpool.compat.async_store import MooncakeDistributedStoreAsync

__all__ = ["MooncakeDistributedStoreAsync"]
