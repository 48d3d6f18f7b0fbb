"""``mooncake.engine``: memory of one process read and written by another, over moonpool's TCP."""

from moonpool.compat.engine.transfer import (
    TransferEngine,
    TransferNotify,
    TransferOpcode,
)

__all__ = ["TransferEngine", "TransferNotify", "TransferOpcode"]
