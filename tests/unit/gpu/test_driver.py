"""The calls of the CUDA driver API, against a library of Python functions with C's signatures."""

from __future__ import annotations

import ctypes
import threading
from typing import Any

import numpy as np
import pytest

from moonpool.gpu import driver as module
from moonpool.gpu.base import GpuError
from moonpool.gpu.driver import CudaDriver

UUID = bytes(range(16))
NAMES = {1: b"CUDA_ERROR_INVALID_VALUE", 2: b"CUDA_ERROR_OUT_OF_MEMORY"}
OTHER_UUID = "GPU-10010203-0405-0607-0809-0a0b0c0d0e0f"


def store(address: int, kind: Any, value: int) -> None:
    kind.from_address(address).value = value


class Library:
    """What libcuda would be. ``results`` are returned by functions, ``seen`` their arguments."""

    def __init__(self, version: int = 13_000, gpus: int = 2, **results: int) -> None:
        self.version, self.gpus, self.results = version, gpus, results
        self.seen: list[tuple[Any, ...]] = []
        self.batches: list[dict[str, Any]] = []
        self._alive: list[Any] = []
        signatures = dict(module._FUNCTIONS)
        if version >= 12_080:
            signatures["cuMemcpyBatchAsync"] = (*module._BATCH, ctypes.c_void_p, ctypes.c_void_p)
        if version >= 13_000:
            signatures["cuMemcpyBatchAsync_v2"] = (*module._BATCH, ctypes.c_void_p)
        for name, arguments in signatures.items():
            self._define(name, arguments)

    def _define(self, name: str, arguments: tuple[type, ...]) -> None:
        def call(*values: Any) -> int:
            self.seen.append((name, *values))
            if name in self.results:
                return self.results[name]
            getattr(self, f"_{name}", lambda *_: None)(*values)
            return 0

        function = ctypes.CFUNCTYPE(ctypes.c_int, *arguments)(call)
        setattr(self, name, function)

    def _cuGetErrorName(self, code: int, text: int) -> None:
        name = ctypes.c_char_p(NAMES.get(code))
        self._alive.append(name)
        store(text, ctypes.c_void_p, ctypes.cast(name, ctypes.c_void_p).value or 0)

    def _cuDriverGetVersion(self, out: int) -> None:
        store(out, ctypes.c_int, self.version)

    def _cuDeviceGetCount(self, out: int) -> None:
        store(out, ctypes.c_int, self.gpus)

    def _cuDeviceGet(self, out: int, number: int) -> None:
        store(out, ctypes.c_int, number * 16)

    def _cuDeviceGetUuid_v2(self, out: int, device: int) -> None:
        ctypes.memmove(out, bytes([device]) + UUID[1:], 16)

    def _cuDevicePrimaryCtxRetain(self, out: int, device: int) -> None:
        store(out, ctypes.c_void_p, 7000 + device)

    def _cuMemcpyBatchAsync(self, *values: Any) -> None:
        self._batch(values, index=True)

    def _cuMemcpyBatchAsync_v2(self, *values: Any) -> None:
        self._batch(values, index=False)

    def _batch(self, values: tuple[Any, ...], *, index: bool) -> None:
        to, source, sizes, count, attributes, first, attribute_count = values[:7]
        arrays = [(ctypes.c_uint64 * count).from_address(at) for at in (to, source, sizes)]
        self.batches.append(
            {
                "rows": list(zip(*map(list, arrays), strict=True)),
                "order": module._Attributes.from_address(attributes).source_order,
                "first": ctypes.c_size_t.from_address(first).value,
                "attributes": attribute_count,
                "stream": values[-1],
                "index": index,
            }
        )

    def _cuMemHostAlloc(self, out: int, nbytes: int, flags: int) -> None:
        store(out, ctypes.c_void_p, 0x7F00_0000_0000 + flags)

    def _cuPointerGetAttribute(self, out: int, attribute: int, address: int) -> None:
        store(out, ctypes.c_uint, 1 + (attribute == 2 and address > 1 << 40))

    def _cuMemGetAddressRange_v2(self, base: int, nbytes: int, address: int) -> None:
        store(base, ctypes.c_uint64, address & ~0xFFFFF)
        store(nbytes, ctypes.c_size_t, 1 << 20)

    def _cuIpcGetMemHandle(self, out: int, address: int) -> None:
        ctypes.memmove(out, b"\x00handle\x00".ljust(56, b"x") + address.to_bytes(8, "little"), 64)

    def _cuIpcOpenMemHandle_v2(self, out: int, handle: Any, _flags: int) -> None:
        raw = ctypes.string_at(ctypes.addressof(handle), 64)
        store(out, ctypes.c_uint64, int.from_bytes(raw[56:], "little") + 1)

    def names(self) -> list[str]:
        return [call[0] for call in self.seen]


def words(*values: int) -> np.ndarray[Any, np.dtype[np.uint64]]:
    return np.array(values, np.uint64)


@pytest.mark.parametrize(("version", "index"), [(13_000, False), (12_080, True), (12_090, True)])
@pytest.mark.parametrize("stable", [True, False])
def test_batched_copies(version: int, index: bool, stable: bool) -> None:
    library = Library(version)
    driver = CudaDriver(library)
    driver.copy_batch(words(1, 2, 3), words(4, 5, 6), words(7, 8, 9), 99, stable=stable)
    assert library.batches == [
        {
            "rows": [(1, 4, 7), (2, 5, 8), (3, 6, 9)],
            "order": 3 if stable else 1,
            "first": 0,
            "attributes": 1,
            "stream": 99,
            "index": index,
        }
    ]
    driver.copy_batch(words(), words(), words(), 99, stable=stable)
    strided = words(*range(1, 10))[::4]
    driver.copy_batch(strided, strided, strided, 99, stable=stable)
    assert library.batches[1]["rows"] == [(1, 1, 1), (5, 5, 5), (9, 9, 9)]
    assert len(library.batches) == 2


def test_a_driver_without_batches_copies_one_by_one() -> None:
    library = Library(12_020)
    driver = CudaDriver(library)
    driver.copy_batch(words(1, 2), words(4, 2**63), words(7, 8), 99, stable=True)
    copies = [call for call in library.seen if call[0] == "cuMemcpyAsync"]
    assert copies == [("cuMemcpyAsync", 1, 4, 7, 99), ("cuMemcpyAsync", 2, 2**63, 8, 99)]
    assert driver.batch_name == "cuMemcpyAsync"


def test_no_driver_and_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LIBRARY", "libnothing-of-the-kind.so")
    with pytest.raises(GpuError, match="no CUDA driver"):
        module.open_driver()
    with pytest.raises(GpuError, match="no CUDA driver"):
        CudaDriver(object())
    with pytest.raises(GpuError, match="cuInit: CUDA_ERROR_INVALID_VALUE") as caught:
        CudaDriver(Library(cuInit=1))
    assert caught.value.name == "CUDA_ERROR_INVALID_VALUE"
    assert caught.value.code == -800


def test_errors_carry_their_names() -> None:
    driver = CudaDriver(Library(cuMemHostRegister_v2=2, cuMemAlloc_v2=4711, cuEventQuery=600))
    with pytest.raises(GpuError, match="cuMemHostRegister_v2: CUDA_ERROR_OUT_OF_MEMORY"):
        driver.host_register(4096, 4096)
    with pytest.raises(GpuError, match="error 4711"):
        driver.memory_alloc(1)
    assert driver.event_query(5) is False


def test_the_gpu_is_found_by_number_or_uuid() -> None:
    driver = CudaDriver(Library())
    driver.use(OTHER_UUID)
    assert driver.uuid() == OTHER_UUID
    driver.use(1)
    driver.use()
    with pytest.raises(GpuError, match="in use for GPU 16"):
        driver.use(0)
    for wrong in (2, -1, "GPU-none"):
        with pytest.raises(GpuError, match=f"{wrong}"):
            CudaDriver(Library()).use(wrong)


def test_the_context_is_made_current_once_in_each_thread() -> None:
    library = Library()
    driver = CudaDriver(library)
    driver.use(1)

    def work() -> None:
        driver.event_record(1, 2)
        driver.event_record(1, 2)

    work()
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    current = [call for call in library.seen if call[0] == "cuCtxSetCurrent"]
    assert current == [("cuCtxSetCurrent", 7016)] * 2
    assert library.names().count("cuDevicePrimaryCtxRetain") == 1


def test_handles_go_whole_and_by_value() -> None:
    """They are not text: a zero byte does not end them."""
    driver = CudaDriver(Library())
    handle = driver.ipc_handle(0x7F00_1234_5678)
    assert len(handle) == 64
    assert handle[:9] == b"\x00handle\x00x"
    assert driver.ipc_open(handle) == 0x7F00_1234_5679
    for wrong in (b"", handle[:63], handle + b"x"):
        with pytest.raises(GpuError, match="bytes"):
            driver.ipc_open(wrong)
        with pytest.raises(GpuError, match="bytes"):
            driver.event_open(wrong)


def test_memory_is_described() -> None:
    driver = CudaDriver(Library())
    assert driver.host_alloc(10) == 0x7F00_0000_0001
    assert driver.address_range(0x1234_5678) == (0x1230_0000, 1 << 20)
    assert driver.is_gpu_memory(1 << 45)
    assert not driver.is_gpu_memory(1 << 30)
    assert not CudaDriver(Library(cuPointerGetAttribute=1)).is_gpu_memory(1 << 45)


def test_events_sleep_and_may_be_shared() -> None:
    library = Library()
    driver = CudaDriver(library)
    driver.event_create()
    driver.event_create(ipc=True)
    flags = [call[2] for call in library.seen if call[0] == "cuEventCreate"]
    assert flags == [3, 7]
