"""GPU memory that another process allocated: handles, and what lies where behind them."""

from __future__ import annotations

import contextlib
from typing import Any

from moonpool.gpu.base import Driver, GpuError, NotSharableError

Shared = dict[str, Any]
"""Plain values: handle (bytes), offset and nbytes (of the region in the allocation), allocation
(bytes of it), device (the GPU's UUID). It goes through msgpack as it is."""

HANDLE_BYTES = 64


def share(driver: Driver, address: int, nbytes: int) -> Shared:
    """Describe a region of this process's GPU memory to other processes of this host.

    The memory must stay allocated as long as anybody has it open. Raises NotSharableError for
    memory that has no handle, then only this process can move its bytes; GpuError for what is no
    GPU memory.
    """
    base, size = driver.address_range(address)
    offset = address - base
    if nbytes <= 0 or offset + nbytes > size:
        raise NotSharableError(
            f"{nbytes} bytes at {address:#x}: the allocation there has {size - offset} left"
        )
    try:
        handle = driver.ipc_handle(base)
    except GpuError as error:
        raise NotSharableError(f"the GPU memory at {address:#x}: {error}", error.name) from None
    return {
        "handle": handle,
        "offset": offset,
        "nbytes": nbytes,
        "allocation": size,
        "device": driver.uuid(),
    }


def open(driver: Driver, shared: Shared) -> int:
    """Map a region that another process shares; return its address here.

    The driver's GPU is chosen by it if none is yet. Opening two regions of one allocation is one
    mapping, counted. Raises GpuError: another GPU, memory that has gone, a description that
    cannot be right.
    """
    handle, offset, nbytes = _checked(shared)
    driver.use(str(shared["device"]))
    base = driver.ipc_open(handle)
    try:
        _, size = driver.address_range(base)
        if offset + nbytes > size:
            raise GpuError(f"{nbytes} bytes at {offset} of a shared allocation of {size}")
    except GpuError:
        with contextlib.suppress(GpuError):
            driver.ipc_close(base)
        raise
    return base + offset


def close(driver: Driver, shared: Shared, address: int) -> None:
    """Unmap what ``open`` returned; nothing may be moving."""
    driver.ipc_close(address - int(shared["offset"]))


def _checked(shared: Shared) -> tuple[bytes, int, int]:
    try:
        handle, offset, nbytes = shared["handle"], shared["offset"], shared["nbytes"]
        device = shared["device"]
    except (KeyError, TypeError) as error:
        raise GpuError(f"this describes no shared GPU memory: {error}") from None
    right = isinstance(handle, bytes) and len(handle) == HANDLE_BYTES
    right &= isinstance(offset, int) and isinstance(nbytes, int) and isinstance(device, str)
    if not right or offset < 0 or nbytes <= 0:
        raise GpuError("this describes no shared GPU memory")
    return handle, offset, nbytes
