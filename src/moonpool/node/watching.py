"""Whether the files of a node's segments stay as the node made them."""

from __future__ import annotations

import asyncio
import logging

from moonpool.errors import TransferError
from moonpool.node.storage import Storage

_log = logging.getLogger(__name__)

LOOK_S = 1.0


async def watch_files(storage: Storage) -> None:
    """Look once a second; raise TransferError when a file was cut short: what was in it is lost.

    Of a file that was deleted, or that another one has replaced, the memory is still there. It is
    said once: nobody on this host can map it any more, and it will not be there after a restart.
    """
    told: set[str] = set()
    while True:
        for path in storage.cut_short():
            raise TransferError(
                f"the segment {path} was cut short by somebody else; the node ends, since what it "
                "held is lost. Start it again"
            )
        for path in storage.strays():
            if path not in told:
                told.add(path)
                _log.error(
                    "the segment %s was deleted or replaced by somebody else; its objects are "
                    "served until this node ends, and are lost then",
                    path,
                )
        await asyncio.sleep(LOOK_S)
