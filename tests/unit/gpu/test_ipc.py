"""GPU memory of one process in another; here both are drivers in this one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from moonpool.gpu import ipc
from moonpool.gpu.base import GpuError, NotSharableError

from .fake import FakeDriver


@pytest.fixture
def other(tmp_path: Path) -> FakeDriver:
    return FakeDriver(tmp_path)


def test_a_region_is_found_in_the_other_process(driver: FakeDriver, other: FakeDriver) -> None:
    base = driver.memory_alloc(100_000)
    shared = ipc.share(driver, base + 5000, 20_000)
    told = msgspec.msgpack.decode(msgspec.msgpack.encode(shared))
    address = ipc.open(other, told)
    driver.bytes_at(base + 5000, 20_000)[:] = 7
    assert (other.bytes_at(address, 20_000) == 7).all()
    assert not other.bytes_at(address - 1, 1)[0]
    assert ipc.open(other, told) == address
    ipc.close(other, told, address)
    assert other.bytes_at(address, 1)[0] == 7
    ipc.close(other, told, address)
    with pytest.raises(GpuError):
        other.bytes_at(address, 1)


@pytest.mark.parametrize(("first", "nbytes"), [(0, 0), (0, -1), (0, 100_001), (99_999, 2)])
def test_more_than_an_allocation(driver: FakeDriver, first: int, nbytes: int) -> None:
    base = driver.memory_alloc(100_000)
    with pytest.raises(NotSharableError):
        ipc.share(driver, base + first, nbytes)


def test_memory_without_a_handle(driver: FakeDriver) -> None:
    base = driver.memory_alloc(4096)
    driver.fail["ipc_handle"] = 1
    with pytest.raises(NotSharableError) as caught:
        ipc.share(driver, base, 4096)
    assert caught.value.name == "CUDA_ERROR_OUT_OF_MEMORY"
    with pytest.raises(GpuError):
        ipc.share(driver, 12345, 1)


WRONG: list[dict[str, Any]] = [
    {"handle": b"x" * 63},
    {"handle": "x" * 64},
    {"handle": b"x" * 64},
    {"offset": -1},
    {"offset": 1.5},
    {"nbytes": 0},
    {"nbytes": 4097},
    {"nbytes": None},
    {"device": 5},
    {"device": "GPU-other"},
]


@pytest.mark.parametrize("change", WRONG)
def test_what_describes_nothing(
    driver: FakeDriver, other: FakeDriver, change: dict[str, Any]
) -> None:
    shared = ipc.share(driver, driver.memory_alloc(4096), 4096)
    with pytest.raises(GpuError):
        ipc.open(other, shared | change)
    assert other._memories == {}
    for missing in ("handle", "offset", "nbytes", "device"):
        with pytest.raises(GpuError):
            ipc.open(other, {k: v for k, v in shared.items() if k != missing})
