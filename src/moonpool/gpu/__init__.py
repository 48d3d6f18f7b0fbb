"""A GPU's memory as one end of transfers, through the CUDA driver: no PyTorch, no compiled code.

Nothing of CUDA is loaded before ``open_driver`` is called.
"""

from __future__ import annotations

from moonpool.gpu.base import Driver, GpuError, NotSharableError
from moonpool.gpu.copier import CudaCopier
from moonpool.gpu.driver import open_driver

__all__ = ["CudaCopier", "Driver", "GpuError", "NotSharableError", "open_driver"]
