"""The CUDA driver API through ctypes: libcuda, which comes with the GPU's driver."""

from __future__ import annotations

import ctypes
import threading
import uuid
from collections.abc import Callable
from typing import Any

import numpy as np

from moonpool.gpu.base import Driver, GpuError
from moonpool.transport.base import U64

LIBRARY = "libcuda.so.1"
HANDLE_BYTES = 64

_STREAM_NON_BLOCKING = 1
_EVENT_BLOCKING_SYNC, _EVENT_DISABLE_TIMING, _EVENT_INTERPROCESS = 1, 2, 4
_HOST_PORTABLE = 1
_IPC_LAZY_PEER_ACCESS = 1
_SOURCE_IN_STREAM_ORDER, _SOURCE_ANY_ORDER = 1, 3
_NOT_READY = 600
_ATTRIBUTE_MEMORY_TYPE, _MEMORY_TYPE_DEVICE = 2, 2
_BATCH_SINCE, _BATCH_V2_SINCE = 12_080, 13_000

_P, _N, _I, _U = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_uint
_A = ctypes.c_uint64
"""CUdeviceptr."""


class _Handle(ctypes.Structure):
    """CUipcMemHandle and CUipcEventHandle, which go by value."""

    _fields_ = (("bytes", ctypes.c_char * HANDLE_BYTES),)


class _Location(ctypes.Structure):
    """CUmemLocation."""

    _fields_ = (("type", _U), ("id", _I))


class _Attributes(ctypes.Structure):
    """CUmemcpyAttributes."""

    _fields_ = (
        ("source_order", _U),
        ("source_hint", _Location),
        ("target_hint", _Location),
        ("flags", _U),
    )


_FUNCTIONS: dict[str, tuple[type, ...]] = {
    "cuInit": (_U,),
    "cuGetErrorName": (_I, _P),
    "cuDriverGetVersion": (_P,),
    "cuDeviceGetCount": (_P,),
    "cuDeviceGet": (_P, _I),
    "cuDeviceGetUuid_v2": (_P, _I),
    "cuDeviceGetPCIBusId": (_P, _I, _I),
    "cuDevicePrimaryCtxRetain": (_P, _I),
    "cuCtxSetCurrent": (_P,),
    "cuCtxGetCurrent": (_P,),
    "cuCtxGetDevice": (_P,),
    "cuCtxGetStreamPriorityRange": (_P, _P),
    "cuStreamCreateWithPriority": (_P, _U, _I),
    "cuStreamDestroy_v2": (_P,),
    "cuEventCreate": (_P, _U),
    "cuEventDestroy_v2": (_P,),
    "cuEventRecord": (_P, _P),
    "cuEventSynchronize": (_P,),
    "cuEventQuery": (_P,),
    "cuIpcGetEventHandle": (_P, _P),
    "cuIpcOpenEventHandle": (_P, _Handle),
    "cuMemcpyAsync": (_A, _A, _N, _P),
    "cuMemHostRegister_v2": (_P, _N, _U),
    "cuMemHostUnregister": (_P,),
    "cuMemHostAlloc": (_P, _N, _U),
    "cuMemFreeHost": (_P,),
    "cuMemAlloc_v2": (_P, _N),
    "cuMemFree_v2": (_A,),
    "cuMemGetAddressRange_v2": (_P, _P, _A),
    "cuPointerGetAttribute": (_P, _I, _A),
    "cuIpcGetMemHandle": (_P, _A),
    "cuIpcOpenMemHandle_v2": (_P, _Handle, _U),
    "cuIpcCloseMemHandle": (_A,),
}
_BATCH = (_P, _P, _P, _N, _P, _P, _N)
_BATCH_NAMES = ("cuMemcpyBatchAsync_v2", "cuMemcpyBatchAsync")

_Function = Callable[..., int]


def open_driver(device: int | str | None = None) -> Driver:
    """Return the GPU's driver; with ``device`` (number or UUID) that GPU is chosen at once.

    Raises GpuError if this machine has no driver or no GPU.
    """
    driver = CudaDriver()
    if device is not None:
        driver.use(device)
    return driver


class CudaDriver:
    """The Driver of a real GPU; see there."""

    def __init__(self, library: Any = None) -> None:
        self._functions: dict[str, _Function] = {}
        try:
            self._library = ctypes.CDLL(LIBRARY) if library is None else library
            for name, arguments in _FUNCTIONS.items():
                self._functions[name] = self._bound(name, arguments)
        except (OSError, AttributeError) as error:
            raise GpuError(f"no CUDA driver: {error}") from None
        self._call("cuInit", 0)
        self.version = self._integer("cuDriverGetVersion")
        self._batch, self._batch_has_index = self._find_batch()
        self.batch_name = _BATCH_NAMES[self._batch_has_index] if self._batch else "cuMemcpyAsync"
        self._lock = threading.Lock()
        self._threads = threading.local()
        self._device: int | None = None
        self._context = 0

    # --- the GPU ------------------------------------------------------------------------------

    def use(self, device: int | str | None = None) -> None:
        with self._lock:
            if device is not None or self._device is None:
                self._choose(self._number(device))
        self._enter()

    def uuid(self) -> str:
        self._enter()
        return self._uuid_of(self._device or 0)

    def pci_bus_id(self) -> str:
        self._enter()
        text = ctypes.create_string_buffer(32)
        self._call("cuDeviceGetPCIBusId", text, len(text), self._device)
        return text.value.decode("ascii", "replace").lower()

    def _number(self, device: int | str | None) -> int:
        """Return the handle of the GPU that is meant."""
        if device is None:
            return self._current() or 0
        count = self._integer("cuDeviceGetCount")
        handles = [self._integer("cuDeviceGet", i) for i in range(count)]
        if isinstance(device, int):
            if not 0 <= device < count:
                raise GpuError(f"GPU {device}: this process sees {count}")
            return handles[device]
        for handle in handles:
            if self._uuid_of(handle) == device:
                return handle
        raise GpuError(f"{device}: no such GPU among the {count} that this process sees")

    def _current(self) -> int | None:
        context = ctypes.c_void_p()
        self._call("cuCtxGetCurrent", ctypes.byref(context))
        return self._integer("cuCtxGetDevice") if context.value else None

    def _choose(self, device: int) -> None:
        if self._device is None:
            context = ctypes.c_void_p()
            self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
            self._device, self._context = device, context.value or 0
        elif self._device != device:
            raise GpuError(f"this driver is in use for GPU {self._device}, not {device}")

    def _uuid_of(self, device: int) -> str:
        raw = (ctypes.c_ubyte * 16)()
        self._call("cuDeviceGetUuid_v2", raw, device)
        return f"GPU-{uuid.UUID(bytes=bytes(raw))}"

    def _enter(self) -> None:
        """Make the context current in this thread, once."""
        if getattr(self._threads, "entered", False):
            return
        if self._device is None:
            with self._lock:
                if self._device is None:
                    self._choose(self._number(None))
        self._call("cuCtxSetCurrent", self._context)
        self._threads.entered = True

    # --- order --------------------------------------------------------------------------------

    def stream_create(self, *, low_priority: bool = True) -> int:
        self._enter()
        least, greatest = ctypes.c_int(), ctypes.c_int()
        self._call("cuCtxGetStreamPriorityRange", ctypes.byref(least), ctypes.byref(greatest))
        priority = least.value if low_priority else greatest.value
        return self._handle("cuStreamCreateWithPriority", _STREAM_NON_BLOCKING, priority)

    def stream_destroy(self, stream: int) -> None:
        self._enter()
        self._call("cuStreamDestroy_v2", stream)

    def event_create(self, *, ipc: bool = False) -> int:
        self._enter()
        flags = _EVENT_BLOCKING_SYNC | _EVENT_DISABLE_TIMING | (_EVENT_INTERPROCESS if ipc else 0)
        return self._handle("cuEventCreate", flags)

    def event_destroy(self, event: int) -> None:
        self._enter()
        self._call("cuEventDestroy_v2", event)

    def event_record(self, event: int, stream: int) -> None:
        self._enter()
        self._call("cuEventRecord", event, stream)

    def event_synchronize(self, event: int) -> None:
        self._enter()
        self._call("cuEventSynchronize", event)

    def event_query(self, event: int) -> bool:
        self._enter()
        code = self._functions["cuEventQuery"](event)
        if code == _NOT_READY:
            return False
        self._check("cuEventQuery", code)
        return True

    def event_handle(self, event: int) -> bytes:
        self._enter()
        handle = _Handle()
        self._call("cuIpcGetEventHandle", ctypes.byref(handle), event)
        return ctypes.string_at(ctypes.addressof(handle), HANDLE_BYTES)

    def event_open(self, handle: bytes) -> int:
        self._enter()
        return self._handle("cuIpcOpenEventHandle", _handle_of(handle))

    # --- bytes --------------------------------------------------------------------------------

    def copy(self, target: int, source: int, nbytes: int, stream: int) -> None:
        self._enter()
        self._call("cuMemcpyAsync", target, source, nbytes, stream)

    def copy_batch(
        self, targets: U64, sources: U64, sizes: U64, stream: int, *, stable: bool
    ) -> None:
        self._enter()
        if not len(sizes):
            return
        if self._batch is None or not stream:
            rows = zip(targets.tolist(), sources.tolist(), sizes.tolist(), strict=True)
            for target, source, nbytes in rows:
                self._call("cuMemcpyAsync", target, source, nbytes, stream)
            return
        to, source_list, lengths = (_words(a) for a in (targets, sources, sizes))
        order = _SOURCE_ANY_ORDER if stable else _SOURCE_IN_STREAM_ORDER
        attributes, first, failed = _Attributes(source_order=order), _N(0), _N(0)
        arguments = (
            to.ctypes.data,
            source_list.ctypes.data,
            lengths.ctypes.data,
            len(lengths),
            ctypes.byref(attributes),
            ctypes.byref(first),
            1,
        )
        if self._batch_has_index:
            code = self._batch(*arguments, ctypes.byref(failed), stream)
        else:
            code = self._batch(*arguments, stream)
        self._check(self.batch_name, code)

    def _find_batch(self) -> tuple[_Function | None, bool]:
        """Return the batched copy and whether it reports which copy failed (CUDA 12)."""
        try:
            if self.version >= _BATCH_V2_SINCE:
                return self._bound(_BATCH_NAMES[False], (*_BATCH, _P)), False
            if self.version >= _BATCH_SINCE:
                return self._bound(_BATCH_NAMES[True], (*_BATCH, _P, _P)), True
        except AttributeError:
            pass
        return None, False

    # --- memory -------------------------------------------------------------------------------

    def host_register(self, address: int, nbytes: int) -> None:
        self._enter()
        self._call("cuMemHostRegister_v2", address, nbytes, _HOST_PORTABLE)

    def host_unregister(self, address: int) -> None:
        self._enter()
        self._call("cuMemHostUnregister", address)

    def host_alloc(self, nbytes: int) -> int:
        self._enter()
        return self._handle("cuMemHostAlloc", nbytes, _HOST_PORTABLE)

    def host_free(self, address: int) -> None:
        self._enter()
        self._call("cuMemFreeHost", address)

    def memory_alloc(self, nbytes: int) -> int:
        self._enter()
        return self._handle("cuMemAlloc_v2", nbytes)

    def memory_free(self, address: int) -> None:
        self._enter()
        self._call("cuMemFree_v2", address)

    def is_gpu_memory(self, address: int) -> bool:
        self._enter()
        kind = ctypes.c_uint()
        code = self._functions["cuPointerGetAttribute"](
            ctypes.byref(kind), _ATTRIBUTE_MEMORY_TYPE, address
        )
        # What the driver does not know is ordinary host memory.
        return code == 0 and kind.value == _MEMORY_TYPE_DEVICE

    def address_range(self, address: int) -> tuple[int, int]:
        self._enter()
        base, nbytes = _A(), _N()
        self._call("cuMemGetAddressRange_v2", ctypes.byref(base), ctypes.byref(nbytes), address)
        return base.value, nbytes.value

    def ipc_handle(self, address: int) -> bytes:
        self._enter()
        handle = _Handle()
        self._call("cuIpcGetMemHandle", ctypes.byref(handle), address)
        return ctypes.string_at(ctypes.addressof(handle), HANDLE_BYTES)

    def ipc_open(self, handle: bytes) -> int:
        self._enter()
        return self._handle("cuIpcOpenMemHandle_v2", _handle_of(handle), _IPC_LAZY_PEER_ACCESS)

    def ipc_close(self, address: int) -> None:
        self._enter()
        self._call("cuIpcCloseMemHandle", address)

    # --- calls --------------------------------------------------------------------------------

    def _bound(self, name: str, arguments: tuple[type, ...]) -> _Function:
        # A prototype of its own: other users of the library may set argtypes on its functions.
        address = ctypes.cast(getattr(self._library, name), _P).value
        function: _Function = ctypes.CFUNCTYPE(_I, *arguments)(address or 0)
        return function

    def _call(self, name: str, *arguments: object) -> None:
        self._check(name, self._functions[name](*arguments))

    def _integer(self, name: str, *arguments: object) -> int:
        value = ctypes.c_int()
        self._call(name, ctypes.byref(value), *arguments)
        return value.value

    def _handle(self, name: str, *arguments: object) -> int:
        """Call a function that stores a handle or an address first."""
        value = ctypes.c_uint64()
        self._call(name, ctypes.byref(value), *arguments)
        return value.value

    def _check(self, name: str, code: int) -> None:
        if code == 0:
            return
        text = ctypes.c_char_p()
        self._functions["cuGetErrorName"](code, ctypes.byref(text))
        error = (text.value or b"").decode("ascii", "replace") or f"error {code}"
        raise GpuError(f"{name}: {error}", error)


def _words(array: U64) -> U64:
    return np.ascontiguousarray(array, np.uint64)


def _handle_of(raw: bytes) -> _Handle:
    if len(raw) != HANDLE_BYTES:
        raise GpuError(f"a handle of {len(raw)} bytes; one has {HANDLE_BYTES}")
    return _Handle.from_buffer_copy(raw)
