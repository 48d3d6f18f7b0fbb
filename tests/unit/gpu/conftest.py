"""A fake GPU and a copier for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from moonpool.gpu.copier import CudaCopier

from .fake import FakeDriver
from .support import CHUNK, STAGING


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[FakeDriver]:
    made = FakeDriver(tmp_path)
    yield made
    assert made.wrong == []


@pytest.fixture
def copier(driver: FakeDriver) -> Iterator[CudaCopier]:
    made = CudaCopier(driver, staging_bytes=STAGING, pin_chunk_bytes=CHUNK, hash_threads=2)
    yield made
    made.close()
    assert driver.registered == {}
    assert not made.pinning.pinned_bytes
