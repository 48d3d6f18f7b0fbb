"""Mooncake's TransferEngine as a one-sided engine, where that is what a site has.

Options: ``protocol`` (tcp, rdma), ``devices`` (names of NICs). Peers find each other by
``host:port`` without a metadata server (its P2P handshake).
"""

from __future__ import annotations

import importlib
import threading
from typing import Any

from moonpool.errors import TransferError
from moonpool.transport.base import U64
from moonpool.transport.onesided_engine import GPU_MEMORY, EngineError, Kind, Setup
from moonpool.transport.pool import parse_address

HANDSHAKE = "P2PHANDSHAKE"
INSTALL = "pip install 'moonpool[mooncake]'"


def engine_class() -> Any:
    """Return the wheel's TransferEngine. Raises EngineError."""
    try:
        return importlib.import_module("mooncake.engine").TransferEngine
    except ModuleNotFoundError as error:
        if error.name in ("mooncake", "mooncake.engine"):
            raise EngineError(f"Mooncake is not installed ({INSTALL})") from None
        raise EngineError(f"mooncake.engine: {error}") from None
    except (ImportError, OSError, AttributeError) as error:
        raise EngineError(f"mooncake.engine: {error}") from None


class MooncakeEngine:
    """One TransferEngine."""

    def __init__(self, kind: Any, host: str, protocol: str, devices: tuple[str, ...]) -> None:
        """Start an engine that peers reach at ``host``. Raises EngineError."""
        self.backends: tuple[str, ...] = (protocol,)
        self._engine = kind()
        if self._engine.initialize(host, HANDSHAKE, protocol, ",".join(devices)):
            raise EngineError(f"Mooncake's TransferEngine does not start with protocol {protocol}")
        self._address = f"{host}:{self._engine.get_rpc_port()}"
        self._registered: list[int] = []

    @classmethod
    def load(cls, setup: Setup) -> MooncakeEngine:
        """Return the engine of a carrier."""
        protocol = (setup.options.get("protocol") or ["tcp"])[0]
        devices = tuple(setup.options.get("devices", ()))
        return cls(engine_class(), setup.host, protocol, devices)

    def register(self, address: int, nbytes: int, memory: str, device: int) -> None:
        """Register memory; for a GPU the engine finds the device by the address."""
        location = f"cuda:{device}" if memory == GPU_MEMORY else "*"
        if self._engine.register_memory(address, nbytes, location):
            raise TransferError(f"Mooncake does not register {nbytes} bytes")
        self._registered.append(address)

    def describe(self) -> bytes:
        """Return host:port."""
        return self._address.encode()

    def connect(self, description: bytes) -> str:
        """Return the peer's name, which is its address; the first transfer connects."""
        try:
            host, port = parse_address(description.decode("ascii"))
        except (UnicodeDecodeError, ValueError):
            raise TransferError("a Mooncake engine is described as host:port") from None
        return f"{host}:{port}"

    def disconnect(self, peer: str) -> None:
        """There is nothing to give back."""

    def pull(
        self,
        peer: str,
        targets: U64,
        sources: U64,
        lengths: U64,
        ours: Kind,
        theirs: Kind,
        note: bool,
    ) -> MooncakePull:
        """Submit a batch of reads."""
        batch = self._engine.batch_transfer_async_read(
            peer, targets.tolist(), sources.tolist(), lengths.tolist()
        )
        if not batch:
            raise TransferError(f"Mooncake does not reach {peer}")
        return MooncakePull(self._engine, batch)

    def notes(self) -> int:
        """Return 0: nobody is notified."""
        return 0

    def close(self) -> None:
        """Unregister all memory."""
        for address in self._registered:
            self._engine.unregister_memory(address)
        self._registered.clear()


class MooncakePull:
    """One submitted batch. The engine has no call that looks without waiting, so a thread waits;
    it ends when the engine's own time-out gives the batch up."""

    def __init__(self, engine: Any, batch: int) -> None:
        self._engine, self._batch = engine, batch
        self._code: int | None = None
        threading.Thread(target=self._wait, name="moonpool-mooncake", daemon=True).start()

    def _wait(self) -> None:
        self._code = int(self._engine.get_batch_transfer_status([self._batch]))

    def done(self) -> bool:
        """Tell whether all bytes have arrived."""
        if self._code:
            raise TransferError(f"Mooncake: the batch ended with {self._code}")
        return self._code == 0

    def end(self) -> None:
        """The engine has freed the batch with its status."""
