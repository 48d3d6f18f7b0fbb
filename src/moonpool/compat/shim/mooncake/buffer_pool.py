"""``mooncake.buffer_pool``."""

from moonpool.compat.bufferpool import BufferPool

__all__ = ["BufferPool", "RegisteredBufferPool"]

RegisteredBufferPool = BufferPool
