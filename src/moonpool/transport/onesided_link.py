"""A client's carriers and the nodes that they reach."""

from __future__ import annotations

import logging
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field

from moonpool.errors import MoonpoolError, TransferError
from moonpool.protocol import data
from moonpool.transport.base import Copier
from moonpool.transport.onesided import OneSidedTransport
from moonpool.transport.onesided_carrier import Carrier
from moonpool.transport.onesided_engine import EngineError, Region, Setup
from moonpool.transport.onesided_gpu import CARRIER, GpuMemory
from moonpool.transport.onesided_peer import Link
from moonpool.transport.onesided_staging import Staging
from moonpool.transport.pool import ConnectionPool, open_data, parse_address

_log = logging.getLogger(__name__)

Opened = tuple[Link, Staging]

RETRY_S = 5.0
"""An engine that did not start, or a node that was not reached, is left alone for this long."""
OPEN_S = 20.0


@dataclass(frozen=True)
class Options:
    """How a carrier is to be started. ``environment`` is its own, not this process's."""

    kind: str
    engine: dict[str, list[str]] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    staging_bytes: int = 256 * 1024 * 1024
    host: str = ""
    gpu: tuple[GpuMemory, ...] = ()


class StillOpeningError(TransferError):
    """There may be a link soon."""


class Links:
    """The links of one client with one kind of engine. ``open`` makes what is missing, in a thread
    of its own: an engine's library may take half a minute to load, or for ever."""

    def __init__(
        self,
        options: Options,
        client: str,
        copier: Copier,
        *,
        timeout_s: float,
        token: str = "",
        start: Callable[..., Carrier] = Carrier,
    ) -> None:
        self.options = options
        self._client, self._token, self._timeout_s = client, token, timeout_s
        self._copier = copier
        self._start = start
        self._lock = threading.Lock()
        self._making = threading.Lock()
        self._opening: dict[str, Future[Opened]] = {}
        self._late: set[str] = set()
        self._staging: Staging | None = None
        self._carrier: Carrier | None = None
        self._links: dict[str, Link] = {}
        self._failed: dict[str, tuple[float, str]] = {}
        self._users: set[OneSidedTransport] = set()
        self._closed = False

    def transport(
        self, address: str, segment: str, wait_s: float | None = None
    ) -> OneSidedTransport:
        """Return the way to a segment of the node at host:port; the carrier ends when the last of
        them is closed. Raises TransferError with the reason, StillOpeningError after ``wait_s``."""
        try:
            link, staging = self.open(address, wait_s)
        except StillOpeningError:
            raise
        except TransferError:
            if not self._users and not self._opening:
                self._end()  # nobody is left who needs the carrier
            raise
        made = OneSidedTransport(
            link,
            staging,
            segment,
            timeout_s=self._timeout_s,
            copier=self._copier,
            gpu=self.options.gpu,
            on_close=self._closed_one,
        )
        with self._lock:
            self._users.add(made)
        return made

    def is_open(self, address: str) -> bool:
        """Whether there is a link to the node at host:port."""
        link = self._links.get(address)
        return link is not None and not link.lost

    def open(self, address: str, wait_s: float | None = None) -> Opened:
        """Return the link to the node at host:port. Raises TransferError with the reason, and
        StillOpeningError after ``wait_s`` (None: as long as it takes), or at once if an earlier
        call has waited for the same in vain."""
        found = self._found(address)
        if not isinstance(found, Future):
            return found
        try:
            return found.result(0 if wait_s is not None and address in self._late else wait_s)
        except TimeoutError:
            self._late.add(address)
            raise StillOpeningError(f"{self.options.kind} is not ready yet") from None

    def _found(self, address: str) -> Opened | Future[Opened]:
        """Return the link, or the one that is being made from now on."""
        with self._lock:
            if self._closed:
                raise TransferError("closed")
            link = self._links.get(address)
            if link is not None and not link.lost and self._staging is not None:
                return link, self._staging
            if link is not None:
                self._links.pop(address).close()
            until, why = self._failed.get(address, (0.0, ""))
            if time.monotonic() < until:
                raise EngineError(why)
            opening = self._opening.get(address)
            if opening is None:
                opening = self._opening[address] = Future()
                work = threading.Thread(
                    target=self._make, args=(address, opening), name="moonpool-link", daemon=True
                )
                work.start()
            return opening

    def _make(self, address: str, opening: Future[Opened]) -> None:
        try:
            with self._making:
                carrier, staging = self._carried(address)
                link = self._connect(address, carrier, staging)
        except Exception as error:  # noqa: BLE001 - somebody waits
            if not isinstance(error, MoonpoolError | OSError):
                _log.exception("opening a link by %s failed", self.options.kind)
            with self._lock:
                del self._opening[address]
                self._failed[address] = time.monotonic() + RETRY_S, str(error)
            opening.set_exception(TransferError(str(error)))
        else:
            with self._lock:
                del self._opening[address]
                self._links[address] = link
                self._late.discard(address)
            opening.set_result((link, staging))
        if self._closed:
            self._end()

    def close(self) -> None:
        """End the carrier and all links."""
        with self._lock:
            self._closed = True
        self._end()

    def _closed_one(self, transport: OneSidedTransport) -> None:
        with self._lock:
            self._users.discard(transport)
            last = not self._users
        if last:
            self._end()

    def _end(self) -> None:
        with self._lock:
            links, self._links = list(self._links.values()), {}
            carrier, self._carrier = self._carrier, None
            staging, self._staging = self._staging, None
        for link in links:
            link.close()
        if carrier is not None:
            carrier.kill()
        if staging is not None:
            staging.close()

    def _carried(self, address: str) -> tuple[Carrier, Staging]:
        if self._staging is None:
            self._staging = Staging(self.options.staging_bytes, self._copier)
        if self._carrier is None or self._carrier.ended.is_set():
            host = self.options.host or _own_host(address)
            staging = Region(self._staging.nbytes, fd=self._staging.fd)
            regions = [staging, *(each.region() for each in self.options.gpu)]
            name = f"{self._client}/{secrets.token_hex(8)}"
            setup = Setup(self.options.kind, name, host, regions, self.options.engine)
            environment: Mapping[str, str] = self.options.environment
            module = {"module": CARRIER} if self.options.gpu else {}
            self._carrier = self._start(setup, environment, on_end=self._on_end, **module)
        return self._carrier, self._staging

    def _connect(self, address: str, carrier: Carrier, staging: Staging) -> Link:
        host, port = parse_address(address)
        wire = open_data(host, port, self._client, self._timeout_s, self._token)
        try:
            wire.within(OPEN_S)
            gpus = zip(carrier.bases[1:], self.options.gpu, strict=True)
            memory = [
                data.OneSidedMemory(carrier.bases[0], staging.nbytes),
                *(data.OneSidedMemory(base, g.nbytes, True, g.device) for base, g in gpus),
            ]
            wire.send(
                data.OpenOneSided(carrier.kind, list(carrier.backends), carrier.description, memory)
            )
            ready = data.decode_reply(wire.receive(), data.OneSidedReady)
            if ready.why:
                raise EngineError(ready.why[:500])
            peer = carrier.connect(ready.description, OPEN_S)
            pool = ConnectionPool(
                address, self._client, timeout_s=self._timeout_s, token=self._token
            )
        except BaseException:
            wire.close()
            raise
        return Link(carrier, peer, ready, wire, pool)

    def _on_end(self) -> None:
        """The carrier has ended: no link is of any use."""
        for link in list(self._links.values()):
            link.lost = True
        if self._users and not self._closed:
            _log.warning("the carrier of %s has ended", self.options.kind)


def _own_host(address: str) -> str:
    """Return this host's address as the node sees it."""
    host, port = parse_address(address)
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host, port))  # sends nothing
            return str(probe.getsockname()[0])
    except OSError:
        return "127.0.0.1"
