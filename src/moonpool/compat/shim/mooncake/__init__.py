"""Mooncake's Python package, answered by moonpool: see ``moonpool compat env``."""

from moonpool.compat.bufferpool import BufferPool

__all__ = ["BufferPool", "RegisteredBufferPool"]

RegisteredBufferPool = BufferPool
