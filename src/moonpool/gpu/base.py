"""What the package needs of a GPU's driver, and how that fails."""

from __future__ import annotations

from typing import Protocol

from moonpool.errors import TransferError
from moonpool.transport.base import U64


class GpuError(TransferError):
    """The GPU's driver refused something, or there is none.

    ``name`` is the driver's name of the error, such as CUDA_ERROR_OUT_OF_MEMORY, or empty.
    """

    def __init__(self, message: str, name: str = "") -> None:
        super().__init__(message)
        self.name = name


class NotSharableError(GpuError):
    """This memory has no handle for other processes: the engine allocates in another way, such as
    PyTorch's expandable segments or vLLM's sleep mode."""


class Driver(Protocol):
    """One GPU. Handles are integers. Every call may be made from any thread, makes the GPU's
    primary context current there if needed, releases the GIL, and raises GpuError.

    The GPU is chosen by the first ``use``, else by the first call that needs one: that of the
    calling thread's current context, else the first.
    """

    def use(self, device: int | str | None = None) -> None:
        """Choose the GPU by its number in this process or by its UUID ("GPU-…").

        A driver stays with its GPU: another one is refused. None makes the context current in
        this thread only.
        """
        ...

    def uuid(self) -> str:
        """Return the GPU's UUID ("GPU-…"), which is the same in every process whatever
        CUDA_VISIBLE_DEVICES says."""
        ...

    def pci_bus_id(self) -> str:
        """Return the GPU's place on the PCI bus, such as 0000:1b:00.0."""
        ...

    # --- order --------------------------------------------------------------------------------

    def stream_create(self, *, low_priority: bool = True) -> int:
        """Return a new stream that does not wait for the default stream."""
        ...

    def stream_destroy(self, stream: int) -> None:
        """Give up a stream; what is queued there is still done."""
        ...

    def event_create(self, *, ipc: bool = False) -> int:
        """Return a new event without a clock, which threads wait for asleep; with ``ipc`` other
        processes may open it."""
        ...

    def event_destroy(self, event: int) -> None:
        """Give up an event."""
        ...

    def event_record(self, event: int, stream: int) -> None:
        """Let the event happen when what is in the stream so far is done. Stream 0 is the legacy
        default stream; the stream must be the GPU's of this driver."""
        ...

    def event_synchronize(self, event: int) -> None:
        """Wait, asleep, until the event's last recording has happened."""
        ...

    def event_query(self, event: int) -> bool:
        """Tell whether the event's last recording has happened."""
        ...

    def event_handle(self, event: int) -> bytes:
        """Return the handle (64 bytes) of an event made with ``ipc``, for other processes."""
        ...

    def event_open(self, handle: bytes) -> int:
        """Return another process's event. It must be recorded there before it is waited for
        here, and outlive this one."""
        ...

    # --- bytes --------------------------------------------------------------------------------

    def copy(self, target: int, source: int, nbytes: int, stream: int) -> None:
        """Queue a copy between any two addresses; pageable host memory makes it wait."""
        ...

    def copy_batch(
        self, targets: U64, sources: U64, sizes: U64, stream: int, *, stable: bool
    ) -> None:
        """Queue n copies between GPU memory and pinned host memory, in no order, shapes (n,).

        stable: the sources are host memory that nobody writes until the copies are done and that
        nothing in the stream writes, so that they may be read at once.
        """
        ...

    # --- memory -------------------------------------------------------------------------------

    def host_register(self, address: int, nbytes: int) -> None:
        """Pin mapped host memory, whole pages."""
        ...

    def host_unregister(self, address: int) -> None:
        """Unpin what was registered at this address."""
        ...

    def host_alloc(self, nbytes: int) -> int:
        """Return new pinned host memory."""
        ...

    def host_free(self, address: int) -> None:
        """Give back what ``host_alloc`` returned."""
        ...

    def memory_alloc(self, nbytes: int) -> int:
        """Return new GPU memory."""
        ...

    def memory_free(self, address: int) -> None:
        """Give back what ``memory_alloc`` returned."""
        ...

    def is_gpu_memory(self, address: int) -> bool:
        """Tell whether an address is one of GPU memory; any other is the host's."""
        ...

    def address_range(self, address: int) -> tuple[int, int]:
        """Return the first address and the bytes of the allocation that holds an address."""
        ...

    def ipc_handle(self, address: int) -> bytes:
        """Return a handle (64 bytes) of the GPU allocation that starts there."""
        ...

    def ipc_open(self, handle: bytes) -> int:
        """Map another process's allocation; return its first address here."""
        ...

    def ipc_close(self, address: int) -> None:
        """Unmap what ``ipc_open`` returned."""
        ...
