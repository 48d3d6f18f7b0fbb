"""The mover on a GPU that is not there: ``python -m tests.unit.vllm.fake_mover FD PARENT``."""

from __future__ import annotations

import os
from pathlib import Path

from moonpool.gpu import GpuError
from moonpool.gpu.base import Driver
from moonpool.vllm import mover
from tests.unit.gpu.fake import FakeDriver


def opener() -> Driver:
    """Return the fake GPU of the test, unless there shall be none."""
    if os.environ.get("FAKE_GPU_REFUSES"):
        raise GpuError("no GPU today")
    return FakeDriver(Path(os.environ["FAKE_GPU"]))


if __name__ == "__main__":
    mover.main(opener)
