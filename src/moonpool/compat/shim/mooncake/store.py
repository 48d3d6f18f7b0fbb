"""``mooncake.store``."""

from moonpool.compat import enums
from moonpool.compat.bufferpool import BufferLease as BufferLeaseView
from moonpool.compat.engram import EngramStore, EngramStoreConfig
from moonpool.compat.leftovers import (
    MooncakeDistributedNoFRegister,
)
from moonpool.compat.leftovers import deserialize_tensor as _deserialize_tensor
from moonpool.compat.leftovers import serialize_tensor as _serialize_tensor
from moonpool.compat.leftovers import tensor_metadata_size as _tensor_metadata_size
from moonpool.compat.store import *  # noqa: F403

RegisteredBufferLeaseView = BufferLeaseView
_KEPT = (
    EngramStore,
    EngramStoreConfig,
    MooncakeDistributedNoFRegister,
    _deserialize_tensor,
    _serialize_tensor,
    _tensor_metadata_size,
)
globals().update(enums.exported())
