"""A carrier that also opens a GPU's memory: ``python -m moonpool.gpu.carrier FD LEASH``."""

from __future__ import annotations

from moonpool.gpu.driver import open_driver
from moonpool.transport import onesided_process


def opened(handle: bytes, device: int) -> int:
    """Return where the memory of a CUDA IPC handle is in this process. Raises GpuError."""
    return open_driver(device).ipc_open(handle)


if __name__ == "__main__":
    onesided_process.main(opened)
