"""NIXL as a one-sided engine: RDMA, NVLink and what else UCX or another of its backends reaches.

Options: ``backends`` (names of NIXL's plugins), ``ucx`` (UCX settings such as ``UCX_TLS=rc,cuda``;
they are the carrier's environment, set where it is started).
"""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from moonpool.errors import TransferError
from moonpool.transport.base import U64
from moonpool.transport.onesided_engine import (
    GPU_MEMORY,
    HOST_MEMORY,
    NOTE,
    EngineError,
    Kind,
    Setup,
)

MODULES = ("nixl_cu12", "nixl_cu13", "nixl")
BACKENDS = ("UCX",)
POLL_US = 100_000
"""How long NIXL's thread sleeps at most without an event. Its Python class fixes this at 0, which
keeps a core busy for ever; so the bindings below that class are used."""
INSTALL = "pip install 'moonpool[nixl]'"


def bindings() -> Any:
    """Return NIXL's bindings, from whichever wheel is installed. Raises EngineError."""
    reasons = []
    for name in MODULES:
        try:
            return importlib.import_module(f"{name}._bindings")
        except ModuleNotFoundError as error:
            if error.name not in (name, f"{name}._bindings"):
                reasons.append(f"{name}: {error}")
        except (ImportError, OSError) as error:
            reasons.append(f"{name}: {error}")
    raise EngineError("; ".join(reasons) or f"NIXL is not installed ({INSTALL})")


def plugins() -> tuple[str, ...]:
    """Return the names of the backends that the installed NIXL has. Raises EngineError."""
    nixl = bindings()
    agent = nixl.nixlAgent("moonpool-doctor", _config(nixl))
    return tuple(sorted(agent.getAvailPlugins()))


def _config(nixl: Any) -> Any:
    config = nixl.nixlAgentConfig()
    config.useProgThread = True
    config.useListenThread = False
    config.pthrDelay = POLL_US
    config.syncMode = nixl.NIXL_THREAD_SYNC_NONE
    return config


class NixlEngine:
    """One NIXL agent with the wanted backends."""

    def __init__(self, nixl: Any, name: str, backends: tuple[str, ...]) -> None:
        """Start an agent; EngineError unless one of the backends works at least."""
        self._nixl = nixl
        self._agent = nixl.nixlAgent(name, _config(nixl))
        self._handles: dict[str, Any] = {}
        self._kept: list[Any] = []
        refused = []
        for backend in backends:
            try:
                self._handles[backend] = self._agent.createBackend(backend, {})
            except Exception as error:  # noqa: BLE001  (pybind's exceptions share no base)
                refused.append(f"{backend}: {error}")
        self.backends = tuple(self._handles)
        if not self._handles:
            raise EngineError(f"no usable backend ({'; '.join(refused) or 'none was asked for'})")

    @classmethod
    def load(cls, setup: Setup) -> NixlEngine:
        """Return the engine of a carrier."""
        backends = tuple(setup.options.get("backends", ())) or BACKENDS
        return cls(bindings(), setup.name, backends)

    def register(self, address: int, nbytes: int, memory: str, device: int) -> None:
        """Register memory with every backend that can."""
        descriptors = self._nixl.nixlRegDList(
            self._segment(memory), np.array([[address, nbytes, device]], np.uint64)
        )
        self._call(self._agent.registerMem, descriptors, list(self._handles.values()))
        self._kept.append(descriptors)

    def describe(self) -> bytes:
        """Return the agent's metadata."""
        try:
            return bytes(self._call(self._agent.getLocalMD))
        except TransferError as error:
            names = ", ".join(self.backends)
            raise EngineError(f"no usable backend ({names} reaches no peer: {error})") from None

    def connect(self, description: bytes) -> str:
        """Load a peer's metadata and connect at once, so that what cannot work fails here."""
        peer = self._call(self._agent.loadRemoteMD, description)
        name = peer.decode(errors="replace") if isinstance(peer, bytes) else str(peer)
        self._call(self._agent.makeConnection, name, [])
        return name

    def disconnect(self, peer: str) -> None:
        """Invalidate a peer's metadata, which ends the connection."""
        self._call(self._agent.invalidateRemoteMD, peer)

    def pull(
        self,
        peer: str,
        targets: U64,
        sources: U64,
        lengths: U64,
        ours: Kind,
        theirs: Kind,
        note: bool,
    ) -> NixlPull:
        """Post a READ of all rows."""
        request = self._call(
            self._agent.createXferReq,
            self._nixl.NIXL_READ,
            self._descriptors(ours, targets, lengths),
            self._descriptors(theirs, sources, lengths),
            peer,
            NOTE if note else b"",
            [],
        )
        return NixlPull(self._nixl, self._agent, request)

    def notes(self) -> int:
        """Return how many notifications have come since the last call."""
        found = self._call(self._agent.getNotifs, {}, [])
        return sum(len(each) for each in found.values())

    def close(self) -> None:
        """Deregister and end the agent."""
        for descriptors in self._kept:
            self._call(self._agent.deregisterMem, descriptors, [])
        self._kept.clear()
        self._agent = None

    def _descriptors(self, kind: Kind, addresses: U64, lengths: U64) -> Any:
        memory, device = kind
        table = np.empty((len(addresses), 3), np.uint64)
        table[:, 0], table[:, 1], table[:, 2] = addresses, lengths, device
        return self._nixl.nixlXferDList(self._segment(memory), table)

    def _segment(self, memory: str) -> Any:
        return {HOST_MEMORY: self._nixl.DRAM_SEG, GPU_MEMORY: self._nixl.VRAM_SEG}[memory]

    @staticmethod
    def _call(function: Any, *arguments: Any) -> Any:
        return call(function, *arguments)


class NixlPull:
    """One posted transfer request."""

    def __init__(self, nixl: Any, agent: Any, request: Any) -> None:
        self._nixl, self._agent, self._request = nixl, agent, request
        try:
            self._status = call(agent.postXferReq, request, b"")
        except TransferError:
            self.end()
            raise

    def done(self) -> bool:
        """Tell whether all bytes have arrived."""
        if self._status == self._nixl.NIXL_IN_PROG:
            self._status = call(self._agent.getXferStatus, self._request)
        if self._status not in (self._nixl.NIXL_IN_PROG, self._nixl.NIXL_SUCCESS):
            raise TransferError(f"NIXL: {self._status}")
        return bool(self._status == self._nixl.NIXL_SUCCESS)

    def end(self) -> None:
        """Release the request."""
        call(self._agent.releaseXferReq, self._request)


def call(function: Any, *arguments: Any) -> Any:
    """Call NIXL; its exceptions share no base class of their own and become TransferError."""
    try:
        return function(*arguments)
    except Exception as error:  # noqa: BLE001
        raise TransferError(f"NIXL: {str(error)[:300]}") from None
