"""``mooncake.store``, answered by moonpool."""

from __future__ import annotations

from moonpool.compat import enums
from moonpool.compat.bufferpool import BufferLease, BufferPool
from moonpool.compat.buffers import BufferHandle
from moonpool.compat.copying import Copying
from moonpool.compat.descriptors import (
    Descriptor,
    DiskDescriptor,
    MemoryDescriptor,
    ReplicaDescriptor,
)
from moonpool.compat.enums import (
    ObjectDataType,
    ReplicaStatus,
    SoftPinAction,
    TaskStatus,
    TaskType,
)
from moonpool.compat.host_memory import (
    MooncakeHostMemAllocator,
    bind_to_numa_node,
    get_alloc_func_addr,
    get_free_func_addr,
)
from moonpool.compat.lifecycle import Lifecycle
from moonpool.compat.looking import Looking
from moonpool.compat.mounting import Mounting
from moonpool.compat.parallel import ParallelAxis, ReadTarget, TensorParallelism
from moonpool.compat.ranges import Ranges
from moonpool.compat.replicas import Replicas
from moonpool.compat.replicate import ReplicateConfig
from moonpool.compat.sessions import Sessions
from moonpool.compat.tasks import QueryTaskResponse, Tasks
from moonpool.compat.tensor_files import TensorFiles
from moonpool.compat.tensors import Tensors
from moonpool.compat.tensors_parallel import TensorsParallel
from moonpool.compat.tensors_tp import TensorsTp
from moonpool.compat.upserts import Upserts
from moonpool.compat.zerocopy import ZeroCopy

__all__ = [
    "BufferHandle",
    "BufferLease",
    "BufferPool",
    "Descriptor",
    "DiskDescriptor",
    "MemoryDescriptor",
    "MooncakeDistributedStore",
    "MooncakeHostMemAllocator",
    "ObjectDataType",
    "ParallelAxis",
    "QueryTaskResponse",
    "ReadTarget",
    "RegisteredBufferLease",
    "RegisteredBufferPool",
    "ReplicaDescriptor",
    "ReplicaStatus",
    "ReplicateConfig",
    "SoftPinAction",
    "TaskStatus",
    "TaskType",
    "TensorParallelism",
    "bind_to_numa_node",
    "get_alloc_func_addr",
    "get_free_func_addr",
]

RegisteredBufferLease, RegisteredBufferPool = BufferLease, BufferPool


class MooncakeDistributedStore(
    Lifecycle,
    Copying,
    Looking,
    ZeroCopy,
    Upserts,
    Replicas,
    Ranges,
    Sessions,
    Tasks,
    Mounting,
    Tensors,
    TensorsTp,
    TensorsParallel,
    TensorFiles,
):
    """The pool, as programs written for Mooncake see it. Calls answer with numbers: 0 or more for
    success, a negative code otherwise; TypeError is for arguments of wrong types only."""


globals().update(enums.exported())
