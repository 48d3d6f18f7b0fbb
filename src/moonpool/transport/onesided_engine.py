"""What a one-sided engine does, and what is said between a process and its carrier.

The engine (NIXL, Mooncake) lives in a process of its own, the carrier: these libraries keep
writing into memory after a transfer was given up, end the whole process on some errors of a
peer, and parse what peers send in C++. None of that may reach a node or a serving engine.
"""

from __future__ import annotations

from typing import Protocol, TypeVar

import msgspec
import numpy as np

from moonpool.errors import MoonpoolError, ProtocolError, TransferError
from moonpool.protocol.data import DataMessage
from moonpool.transport.base import U64

KINDS = ("nixl", "mooncake")
HOST_MEMORY, GPU_MEMORY = "DRAM", "VRAM"
ROWS_MAX = 1 << 20
NOTE = b"moonpool"

Kind = tuple[str, int]
"""HOST_MEMORY or GPU_MEMORY, and the number of the GPU."""


class EngineError(TransferError):
    """The engine cannot do what was asked; the peer or this host is not made for it."""


class Region(msgspec.Struct, frozen=True, array_like=True):
    """Memory that the carrier maps and registers: a file by path, an inherited descriptor, memory
    of its own (neither), or a GPU's by its CUDA IPC handle. ``users`` is locked (shared)."""

    nbytes: int
    path: str = ""
    fd: int = -1
    users: str = ""
    gpu_handle: bytes = b""
    gpu_offset: int = 0
    device: int = 0


class Setup(DataMessage, frozen=True):
    """What a carrier is started with. ``options`` are the engine's; see its module."""

    kind: str
    name: str
    host: str
    regions: list[Region]
    options: dict[str, list[str]] = msgspec.field(default_factory=dict)


class Pull(Protocol):
    """Bytes on their way. ``done`` raises TransferError when they will not arrive."""

    def done(self) -> bool:
        """Tell whether all bytes have arrived."""
        ...

    def end(self) -> None:
        """Give the engine's resources back."""
        ...


class Engine(Protocol):
    """One-sided reads by addresses. Used by one thread. Every call may raise TransferError."""

    backends: tuple[str, ...]

    def register(self, address: int, nbytes: int, memory: str, device: int) -> None:
        """Let this process and its peers move bytes from and to memory."""
        ...

    def describe(self) -> bytes:
        """Return what a peer's ``connect`` needs; made after everything is registered."""
        ...

    def connect(self, description: bytes) -> str:
        """Make a peer reachable; return its name here."""
        ...

    def disconnect(self, peer: str) -> None:
        """Forget a peer."""
        ...

    def pull(
        self,
        peer: str,
        targets: U64,
        sources: U64,
        lengths: U64,
        ours: Kind,
        theirs: Kind,
        note: bool,
    ) -> Pull:
        """Start to copy the peer's memory into ours, each of its kind; with ``note`` the peer is
        notified at the end. Arrays of shape (k,), no length is 0."""
        ...

    def notes(self) -> int:
        """Return how many notifications have come since the last call."""
        ...

    def close(self) -> None:
        """Give everything up."""
        ...


# --- between a process and its carrier ----------------------------------------------------------


class Ready(DataMessage, frozen=True):
    """The carrier's first message: ``bases`` are its addresses of the regions."""

    description: bytes
    bases: list[int]
    backends: list[str]


class Connect(DataMessage, frozen=True):
    """Make a peer reachable; answered by Connected or Failed."""

    id: int
    description: bytes


class Connected(DataMessage, frozen=True):
    """The peer's name."""

    id: int
    peer: str


class Disconnect(DataMessage, frozen=True):
    """Forget a peer; not answered."""

    peer: str


class Fetch(DataMessage, frozen=True):
    """Copy rows from a peer in phases, one after the other; answered by Fetched or Failed.

    Arrays of u64: targets are offsets in the region, sources the peer's addresses. ``phases`` are
    the numbers of rows of each phase. With ``gpu`` the peer's memory is that of its ``device``.
    """

    id: int
    peer: str
    region: int
    targets: bytes
    sources: bytes
    lengths: bytes
    phases: list[int]
    note: bool = False
    gpu: bool = False
    device: int = 0


class Fetched(DataMessage, frozen=True):
    """All bytes have arrived."""

    id: int


class Failed(DataMessage, frozen=True):
    """Why not."""

    id: int
    text: str


class Noted(DataMessage, frozen=True):
    """So many notifications have come in all; sent when the number changed."""

    count: int


_setup = msgspec.msgpack.Decoder(Setup)
_orders = msgspec.msgpack.Decoder(Connect | Disconnect | Fetch)
_reports = msgspec.msgpack.Decoder(Ready | Connected | Fetched | Failed | Noted)
T = TypeVar("T")


def decode_setup(payload: bytes | bytearray) -> Setup:
    """Return what a carrier is started with; ProtocolError if it is nothing of that kind."""
    return _decode(_setup, payload)


def decode_order(payload: bytes | bytearray) -> Connect | Disconnect | Fetch:
    """Return what the carrier is asked; ProtocolError if it is nothing known."""
    found: Connect | Disconnect | Fetch = _decode(_orders, payload)
    return found


def decode_report(payload: bytes | bytearray) -> Ready | Connected | Fetched | Failed | Noted:
    """Return what the carrier says; ProtocolError if it is nothing known."""
    found: Ready | Connected | Fetched | Failed | Noted = _decode(_reports, payload)
    return found


def _decode(decoder: msgspec.msgpack.Decoder[T], payload: bytes | bytearray) -> T:
    try:
        return decoder.decode(payload)
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        raise ProtocolError(f"not a message of a carrier: {error}") from None


def rows(raw: bytes) -> U64:
    """Return the u64 array in a field."""
    if len(raw) % 8 or len(raw) > 8 * ROWS_MAX:
        raise ProtocolError(f"an array of {len(raw)} bytes; at most {ROWS_MAX} words")
    return np.frombuffer(raw, "<u8").astype(np.uint64)


def load(setup: Setup) -> Engine:
    """Return the engine of that kind. Raises EngineError where it cannot work."""
    try:
        if setup.kind == "nixl":
            from moonpool.transport.nixl import NixlEngine

            return NixlEngine.load(setup)
        if setup.kind == "mooncake":
            from moonpool.transport.mooncake import MooncakeEngine

            return MooncakeEngine.load(setup)
    except MoonpoolError:
        raise
    except (ImportError, OSError) as error:
        raise EngineError(f"{setup.kind} cannot be loaded: {error}") from None
    raise EngineError(f"no engine {setup.kind!r}; there are {', '.join(KINDS)}")
