"""Ways to segments of nodes: shared memory on the same host, else TCP."""

from __future__ import annotations

from collections.abc import Sequence

from moonpool.client.attachment import Attachments
from moonpool.core.messages import SegmentInfo
from moonpool.errors import MoonpoolError, TransferError
from moonpool.transport import copy
from moonpool.transport.base import Copier, Transport
from moonpool.transport.host import shares_memory
from moonpool.transport.tcp import TcpTransport

CONNECT_TIMEOUT_S = 2.0


class Ways:
    """Opens transports; ``kinds`` are the allowed ones ("shm", "tcp"), the best first.

    copier: reaches the memory that their callers' Pieces describe.
    """

    def __init__(
        self,
        client: str,
        kinds: Sequence[str],
        timeout_s: float,
        token: str = "",
        copier: Copier = copy.HOST,
    ) -> None:
        self._copier = copier
        self._client = client
        self._kinds = tuple(kinds)
        self._timeout_s = timeout_s
        self._token = token
        self._attachments = Attachments(client, min(timeout_s, CONNECT_TIMEOUT_S), token, copier)

    def open(self, info: SegmentInfo) -> Transport:
        """Return the best way to a segment. Raises TransferError with what was tried."""
        tried: list[str] = []
        for kind in self._kinds:
            try:
                if kind == "tcp":
                    return TcpTransport(
                        info.address,
                        info.name,
                        self._client,
                        timeout_s=self._timeout_s,
                        token=self._token,
                        copier=self._copier,
                    )
                if shares_memory(info.host, info.path):
                    return self._attachments.open(info)
                tried.append(f"{kind}: not on this host")
            except (MoonpoolError, OSError) as error:
                tried.append(f"{kind}: {error}")
        raise TransferError("; ".join(tried))
