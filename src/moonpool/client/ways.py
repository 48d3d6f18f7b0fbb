"""Ways to segments of nodes: shared memory on the same host, an engine for RDMA, or TCP."""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections.abc import Sequence
from functools import partial

from moonpool.client.attachment import Attachments
from moonpool.config import EngineConfig
from moonpool.core.messages import SegmentInfo
from moonpool.errors import MoonpoolError, TransferError
from moonpool.protocol.data import DISK
from moonpool.transport import copy
from moonpool.transport.base import Copier, Transport
from moonpool.transport.host import shares_memory
from moonpool.transport.onesided import OneSidedTransport
from moonpool.transport.onesided_gpu import GpuMemory
from moonpool.transport.onesided_link import Links, StillOpeningError
from moonpool.transport.onesided_options import options_for
from moonpool.transport.tcp import TcpTransport

_log = logging.getLogger("moonpool.client")

CONNECT_TIMEOUT_S = 2.0
ENGINE_WAIT_S = 4.0
"""An engine that takes longer to start is used when it is there, and the next way until then."""
ENGINES = ("nixl", "mooncake")


class Ways:
    """Opens transports; ``kinds`` are the allowed ones (shm, tcp, nixl, mooncake), the best first.

    copier: reaches the memory that their callers' Pieces describe. engines: settings of nixl and
    mooncake; staging: bytes of memory through which they move objects; gpu: memory that
    they reach by themselves, unchecked.
    """

    def __init__(
        self,
        client: str,
        kinds: Sequence[str],
        timeout_s: float,
        token: str = "",
        copier: Copier = copy.HOST,
        engines: EngineConfig | None = None,
        staging: int = 256 << 20,
        gpu: Sequence[GpuMemory] = (),
    ) -> None:
        self._gpu = tuple(gpu)
        self._engines = engines or EngineConfig()
        self._staging = staging
        self._links: dict[str, Links] = {}
        self._told: set[tuple[str, str]] = set()
        self._lock = threading.Lock()
        self._copier = copier
        self._client = client
        self._kinds = tuple(kinds)
        self._timeout_s = timeout_s
        self._token = token
        self._attachments = Attachments(client, min(timeout_s, CONNECT_TIMEOUT_S), token, copier)

    def verify(self, *, near: bool) -> None:
        """Say whether what is read in this host's memory is compared with its checksum, as all is
        that comes over a network."""
        self._attachments.verify = near

    def open(self, info: SegmentInfo) -> Transport:
        """Return the best way to a segment. Raises TransferError with what was tried."""
        tried: list[str] = []
        coming: list[str] = []
        for kind in self._kinds:
            if kind in ENGINES and info.name == DISK:
                continue
            try:
                transport = self._open(kind, info, last=kind == self._kinds[-1])
            except StillOpeningError as error:
                tried.append(f"{kind}: {error}")
                coming.append(kind)
                continue
            except (MoonpoolError, OSError) as error:
                tried.append(f"{kind}: {error}")
                continue
            self._tell(kind, info, tried)
            if coming and isinstance(transport, TcpTransport):
                transport.outdated = partial(self._any_open, coming, info.address)
            return transport
        raise TransferError("; ".join(tried))

    def _any_open(self, kinds: Sequence[str], address: str) -> bool:
        return any(self._links[kind].is_open(address) for kind in kinds)

    def _open(self, kind: str, info: SegmentInfo, *, last: bool) -> Transport:
        """``last``: there is no other way, so that this one is worth any wait."""
        if kind == "shm":
            if not shares_memory(info.host, info.path):
                raise TransferError("not on this host")
            return self._attachments.open(info)
        if kind in ENGINES:
            return self._open_one_sided(kind, info, None if last else ENGINE_WAIT_S)
        return TcpTransport(
            info.address,
            info.name,
            self._client,
            timeout_s=self._timeout_s,
            token=self._token,
            copier=self._copier,
        )

    def _open_one_sided(
        self, kind: str, info: SegmentInfo, wait_s: float | None
    ) -> OneSidedTransport:
        with self._lock:
            links = self._links.get(kind)
            if links is None:
                options = options_for(kind, self._engines, staging=self._staging)
                options = dataclasses.replace(options, gpu=self._gpu)
                links = self._links[kind] = Links(
                    options,
                    self._client,
                    self._copier,
                    timeout_s=self._timeout_s,
                    token=self._token,
                )
        return links.transport(info.address, info.name, wait_s)

    def _tell(self, kind: str, info: SegmentInfo, tried: list[str]) -> None:
        """Log once for each node and way why an engine that was asked for is not used."""
        passed = [each for each in tried if each.startswith(ENGINES)]
        if passed and (info.address, kind) not in self._told:
            self._told.add((info.address, kind))
            _log.warning("node %s is reached by %s: %s", info.node, kind, "; ".join(passed))
