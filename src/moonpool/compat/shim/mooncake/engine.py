"""``mooncake.engine``."""

from moonpool.compat.engine import TransferEngine, TransferNotify, TransferOpcode
from moonpool.compat.engine.transfer import Inner as InnerTransferEngine

__all__ = ["InnerTransferEngine", "TransferEngine", "TransferNotify", "TransferOpcode"]

Read, Write = TransferOpcode.Read, TransferOpcode.Write
SUPPORT_CUDA = SUPPORT_EFA = SUPPORT_HIP = SUPPORT_MUSA = False
SUPPORT_INTRA_NVLINK = SUPPORT_MNNVL = False
