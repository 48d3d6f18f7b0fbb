"""Pinned memory that is lent in pieces."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from moonpool.gpu.arena import ALIGN_BYTES
from moonpool.gpu.base import GpuError
from moonpool.gpu.staging import Staging

from .fake import FakeDriver

PAGES = 16
NBYTES = PAGES * ALIGN_BYTES


@pytest.fixture
def staging(driver: FakeDriver) -> Staging:
    return Staging(driver, NBYTES, lambda _address, _nbytes: None)


def test_pieces_do_not_overlap_and_come_back_whole(staging: Staging) -> None:
    rng = np.random.default_rng(1)
    lent: list[tuple[object, int, int]] = []
    for _ in range(500):
        free = PAGES - sum(n for _, _, n in lent)
        if lent and (free == 0 or rng.random() < 0.5):
            context, _, _ = lent.pop(int(rng.integers(len(lent))))
            context.__exit__(None, None, None)  # type: ignore[attr-defined]
            continue
        pages = int(rng.integers(1, free + 1))
        context = staging.lend(pages * ALIGN_BYTES - 5, timeout_s=0.0)
        try:
            address = context.__enter__()
        except GpuError:
            continue  # free, but not in one piece
        for _, start, size in lent:
            assert address + pages * ALIGN_BYTES <= start or start + size * ALIGN_BYTES <= address
        lent.append((context, address, pages))
    for context, _, _ in lent:
        context.__exit__(None, None, None)  # type: ignore[attr-defined]
    with staging.lend(NBYTES, timeout_s=0.0):
        pass


def test_who_gets_nothing_waits(staging: Staging) -> None:
    got = threading.Event()

    def take() -> None:
        with staging.lend(NBYTES, timeout_s=60):
            got.set()

    with staging.lend(10):
        with pytest.raises(GpuError, match="staging"), staging.lend(NBYTES, timeout_s=0.01):
            pass
        thread = threading.Thread(target=take)
        thread.start()
        assert not got.is_set()
    thread.join()
    assert got.is_set()


def test_more_than_there_is_comes_from_ordinary_memory(
    staging: Staging, driver: FakeDriver
) -> None:
    assert not staging.pinned(NBYTES + 1)
    with staging.lend(NBYTES + 1) as address, staging.lend(NBYTES) as other:
        assert not driver._pinned(address, 1)
        assert driver._pinned(other, NBYTES)


def test_refused_once_is_not_asked_again(staging: Staging, driver: FakeDriver) -> None:
    driver.fail["host_alloc"] = 1
    for _ in range(2):
        with staging.lend(NBYTES) as address:
            assert not driver._pinned(address, 1)
    assert driver.calls["host_alloc"] == 1
