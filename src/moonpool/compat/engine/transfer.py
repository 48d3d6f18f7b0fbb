"""``TransferEngine``, with Mooncake's calls, codes and TypeErrors."""

from __future__ import annotations

import ctypes
import enum
import logging
import mmap
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from moonpool.compat.casting import (
    CastError,
    Parameter,
    anything,
    call,
    numbers,
    text,
    u64,
)
from moonpool.compat.engine.jobs import Jobs
from moonpool.compat.engine.metadata import Metadata
from moonpool.compat.engine.peers import Peers
from moonpool.compat.engine.registry import Registry
from moonpool.compat.engine.server import Server
from moonpool.compat.engine.topology import topology_json
from moonpool.errors import MoonpoolError, TransferError
from moonpool.transport.base import U64

OK, FAILED = 0, -1
NOT_REGISTERED, OVERLAPS, NO_PEER = -3, -7, -102
MANAGED_MAX = 1 << 40
PROTOCOLS = ("tcp", "")

log = logging.getLogger("moonpool.compat")


class TransferOpcode(enum.Enum):
    """Which way bytes go."""

    Read = 0
    Write = 1


class TransferNotify:
    """A word to the peer's program, sent behind the bytes."""

    def __init__(self, name: str = "", msg: str = "") -> None:
        self.name = name
        self.msg = msg


class Inner:
    """What ``get_engine`` gives: a handle that only its own engine understands."""

    def __init__(self, engine: TransferEngine) -> None:
        self.engine = engine


def _opcode(value: Any) -> TransferOpcode:
    if not isinstance(value, TransferOpcode):
        raise CastError
    return value


def _notify(value: Any) -> TransferNotify | None:
    if value is not None and not isinstance(value, TransferNotify):
        raise CastError
    return value


def _device(value: Any) -> str:
    return "" if value is None else text(value)


_TARGET = Parameter("target_hostname", text)
_HINT = Parameter("transport_hint", text, "")
_ONE = (
    _TARGET,
    Parameter("buffer", u64),
    Parameter("peer_buffer_address", u64),
    Parameter("length", u64),
)
_MANY = (
    _TARGET,
    Parameter("buffers", numbers),
    Parameter("peer_buffer_addresses", numbers),
    Parameter("lengths", numbers),
)
_LOCATION = Parameter("location", text, "*")
_OPCODE = Parameter("opcode", _opcode)
_NOTIFY = Parameter("notify", _notify, None)


class TransferEngine:
    """Moves bytes between registered memory of this process and of others.

    Every range of a transfer must lie in a registered buffer, here and there; else the transfer
    fails. Codes below 0 are failures; nothing raises but TypeError for arguments of wrong types.
    """

    def __init__(self) -> None:
        self._registry = Registry()
        self._managed: dict[int, mmap.mmap] = {}
        self._parts: tuple[Server, Metadata, Peers] | None = None
        self._jobs = Jobs()

    def __del__(self) -> None:
        if hasattr(self, "_jobs"):
            self._stop()
            self._jobs.close()

    # --- life -----------------------------------------------------------------------------------

    @call(*(Parameter(name, text) for name in ("hostname", "metadata", "protocol", "device")))
    def initialize(self, hostname: str, metadata: str, protocol: str, device: str) -> int:
        """Serve at ``hostname``. Bytes travel over TCP, whatever the protocol."""
        return self._start(hostname, metadata, protocol)

    @call(
        *(Parameter(name, text) for name in ("hostname", "metadata", "protocol", "device", "kind"))
    )
    def initialize_ext(
        self, hostname: str, metadata: str, protocol: str, device: str, kind: str
    ) -> int:
        """As ``initialize``; ``kind`` names the metadata server's kind, which its URL says too."""
        return self._start(hostname, metadata, protocol)

    def _start(self, hostname: str, metadata: str, protocol: str) -> int:
        self._stop()
        token = os.environ.get("MOONPOOL_TOKEN", "")
        if protocol not in PROTOCOLS:
            log.warning("TransferEngine: bytes travel over TCP, not over %s", protocol)
        try:
            found = Metadata(metadata, hostname)
            server = Server(found.host, self._registry, token)
        except (MoonpoolError, OSError) as error:
            log.error("TransferEngine: %s", error)
            return FAILED
        try:
            found.publish(server.port)
        except MoonpoolError as error:
            server.close()
            log.error("TransferEngine: %s", error)
            return FAILED
        server.start()
        self._parts = server, found, Peers(self._registry, token)
        return OK

    def _stop(self) -> None:
        parts, self._parts = self._parts, None
        if parts is not None:
            server, metadata, peers = parts
            metadata.withdraw()
            server.close()
            peers.close()

    def get_rpc_port(self) -> int:
        """Return the port at which others reach this engine; 0 before ``initialize``."""
        return self._parts[0].port if self._parts else 0

    def get_engine(self) -> Inner:
        """Return a handle of the engine."""
        return Inner(self)

    def get_engine_ptr(self) -> int:
        """Return a number that stands for the engine; it is no address of a C++ object."""
        return id(self)

    @call(Parameter("device_name", _device, None))
    def get_local_topology(self, device_name: str) -> str:
        """Return JSON: for each NUMA node and GPU the near NICs, and the others."""
        return topology_json(device_name)

    # --- memory -----------------------------------------------------------------------------------

    @call(Parameter("buffer_addr", u64), Parameter("capacity", u64), _LOCATION)
    def register_memory(self, buffer_addr: int, capacity: int, location: str) -> int:
        """Let others read and write ``capacity`` bytes; -7 if some of them are registered."""
        return OK if self._registry.add(buffer_addr, capacity) else OVERLAPS

    @call(Parameter("buffer_addr", u64))
    def unregister_memory(self, buffer_addr: int) -> int:
        """Wait for the transfers that use it, and take the buffer back; -3 if there is none."""
        return OK if self._registry.remove(buffer_addr) else NOT_REGISTERED

    @call(Parameter("buffer_addresses", numbers), Parameter("capacities", numbers), _LOCATION)
    def batch_register_memory(self, addresses: U64, capacities: U64, location: str) -> int:
        """Register all, or none if one cannot be."""
        if len(addresses) != len(capacities):
            return FAILED
        done: list[int] = []
        for address, nbytes in zip(addresses.tolist(), capacities.tolist(), strict=True):
            if not self._registry.add(address, nbytes):
                for each in done:
                    self._registry.remove(each)
                return OVERLAPS
            done.append(address)
        return OK

    @call(Parameter("buffer_addresses", numbers))
    def batch_unregister_memory(self, addresses: U64) -> int:
        """Unregister all; -3 if one of them is not there."""
        removed = [self._registry.remove(address) for address in addresses.tolist()]
        return OK if all(removed) else NOT_REGISTERED

    @call(Parameter("length", u64))
    def allocate_managed_buffer(self, length: int) -> int:
        """Return the address of registered memory of the engine's own; 0 if there is none."""
        if not 0 < length <= MANAGED_MAX:
            return 0
        try:
            memory = mmap.mmap(-1, length)
        except (OSError, OverflowError, ValueError):
            return 0
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        self._managed[address] = memory
        self._registry.add(address, length)
        return address

    @call(Parameter("buffer_addr", u64), Parameter("length", u64))
    def free_managed_buffer(self, buffer_addr: int, length: int) -> int:
        """Give such memory back."""
        memory = self._managed.pop(buffer_addr, None)
        if memory is None:
            return FAILED
        self._registry.remove(buffer_addr)
        return OK

    @call(Parameter("buffer_addr", u64), Parameter("data", anything), Parameter("length", u64))
    def write_bytes_to_buffer(self, buffer_addr: int, data: Any, length: int) -> int:
        """Copy bytes into registered memory; -1 elsewhere, or if there are fewer of them."""
        raw = data.encode() if isinstance(data, str) else bytes(data)
        if length > len(raw):
            return FAILED
        hold = self._registry.hold(_array(buffer_addr), _array(length), _nothing)
        if hold is None:
            return FAILED
        with hold:
            ctypes.memmove(buffer_addr, raw, length)
        return OK

    @call(Parameter("buffer_addr", u64), Parameter("length", u64))
    def read_bytes_from_buffer(self, buffer_addr: int, length: int) -> bytes:
        """Return bytes of registered memory; none elsewhere."""
        hold = self._registry.hold(_array(buffer_addr), _array(length), _nothing)
        if hold is None:
            return b""
        with hold:
            return ctypes.string_at(buffer_addr, length)

    @call(_TARGET)
    def get_first_buffer_address(self, target_hostname: str) -> int:
        """Return the address of the peer's first buffer, 0 if it cannot be asked."""
        try:
            return self._peers().ask(self._find(target_hostname))
        except TransferError as error:
            log.warning("TransferEngine: %s: %s", target_hostname, error)
            return 0

    # --- transfers --------------------------------------------------------------------------------

    @call(*_ONE, _HINT)
    def transfer_sync_write(self, target: str, ours: int, theirs: int, nbytes: int, _: str) -> int:
        """Write to the peer; 0 once the bytes are there, else -1."""
        return self._move(target, [ours], [theirs], [nbytes], TransferOpcode.Write)

    @call(*_ONE, _HINT)
    def transfer_sync_read(self, target: str, ours: int, theirs: int, nbytes: int, _: str) -> int:
        """Read from the peer; 0 once the bytes are here, else -1."""
        return self._move(target, [ours], [theirs], [nbytes], TransferOpcode.Read)

    @call(*_ONE, _OPCODE, _NOTIFY, _HINT)
    def transfer_sync(
        self,
        target: str,
        ours: int,
        theirs: int,
        nbytes: int,
        opcode: TransferOpcode,
        notify: TransferNotify | None,
        _: str,
    ) -> int:
        """Read or write; tell the peer something afterwards."""
        return self._move(target, [ours], [theirs], [nbytes], opcode, notify)

    @call(*_MANY, _HINT)
    def batch_transfer_sync_write(
        self, target: str, ours: U64, theirs: U64, nbytes: U64, _: str
    ) -> int:
        """Write ranges to the peer; 0 once all are there, else -1."""
        return self._move(target, ours, theirs, nbytes, TransferOpcode.Write)

    @call(*_MANY, _HINT)
    def batch_transfer_sync_read(
        self, target: str, ours: U64, theirs: U64, nbytes: U64, _: str
    ) -> int:
        """Read ranges from the peer; 0 once all are here, else -1."""
        return self._move(target, ours, theirs, nbytes, TransferOpcode.Read)

    @call(*_MANY, _OPCODE, _NOTIFY, _HINT)
    def batch_transfer_sync(
        self,
        target: str,
        ours: U64,
        theirs: U64,
        nbytes: U64,
        opcode: TransferOpcode,
        notify: TransferNotify | None,
        _: str,
    ) -> int:
        """Read or write ranges; tell the peer something afterwards."""
        return self._move(target, ours, theirs, nbytes, opcode, notify)

    @call(*_MANY, _HINT)
    def batch_transfer_async_write(
        self, target: str, ours: U64, theirs: U64, nbytes: U64, _: str
    ) -> int:
        """Begin to write ranges; return a batch's number for ``get_batch_transfer_status``."""
        return self._submit(target, ours, theirs, nbytes, TransferOpcode.Write)

    @call(*_MANY, _HINT)
    def batch_transfer_async_read(
        self, target: str, ours: U64, theirs: U64, nbytes: U64, _: str
    ) -> int:
        """Begin to read ranges."""
        return self._submit(target, ours, theirs, nbytes, TransferOpcode.Read)

    @call(*_MANY, _OPCODE, _HINT)
    def batch_transfer_async(
        self, target: str, ours: U64, theirs: U64, nbytes: U64, opcode: TransferOpcode, _: str
    ) -> int:
        """Begin to read or write ranges."""
        return self._submit(target, ours, theirs, nbytes, opcode)

    @call(Parameter("batch_ids", numbers))
    def get_batch_transfer_status(self, batch_ids: U64) -> int:
        """Wait for batches; 0 if all succeeded, else -1. Each may be asked for once."""
        return self._jobs.wait(batch_ids.tolist())

    @call(*_ONE, _HINT)
    def transfer_submit_write(
        self, target: str, ours: int, theirs: int, nbytes: int, _: str
    ) -> int:
        """Begin to write; return a number for ``transfer_check_status``, -1 if it cannot be."""
        number = self._submit(target, [ours], [theirs], [nbytes], TransferOpcode.Write)
        return number or FAILED

    @call(Parameter("batch_id", u64))
    def transfer_check_status(self, batch_id: int) -> int:
        """Return 1 for done, 0 for not yet, -1 for failed or unknown."""
        return self._jobs.look(batch_id)

    def get_notifies(self) -> list[TransferNotify]:
        """Return what peers have told since it was last asked for."""
        if self._parts is None:
            return []
        notes, found = self._parts[0].notes, []
        while notes:
            found.append(TransferNotify(*notes.popleft()))
        return found

    @call(Parameter("peer_server_name", text))
    def send_probe(self, peer_server_name: str) -> int:
        """Return 0 if the peer answers, else -102."""
        try:
            self._peers().ask(self._find(peer_server_name))
        except TransferError:
            return NO_PEER
        return OK

    @call(Parameter("segment_name", text))
    def warmup_efa_segment(self, segment_name: str) -> int:
        """Return 0: there is nothing to warm up."""
        return OK

    # --- inside ---------------------------------------------------------------------------------

    def _peers(self) -> Peers:
        if self._parts is None:
            raise TransferError("the engine is not initialized")
        return self._parts[2]

    def _find(self, name: str) -> str:
        if self._parts is None:
            raise TransferError("the engine is not initialized")
        return self._parts[1].find(name)

    def _move(
        self,
        target: str,
        ours: Sequence[int] | U64,
        theirs: Sequence[int] | U64,
        nbytes: Sequence[int] | U64,
        opcode: TransferOpcode,
        notify: TransferNotify | None = None,
    ) -> int:
        here, there, lengths = (np.asarray(each, np.uint64) for each in (ours, theirs, nbytes))
        if not len(here) == len(there) == len(lengths):
            return FAILED
        some = lengths > 0
        try:
            peers, address = self._peers(), self._find(target)
            if some.any():
                write = opcode is TransferOpcode.Write
                peers.move(address, here[some], there[some], lengths[some], write=write)
            if notify is not None:
                peers.note(address, notify.name, notify.msg)
        except TransferError as error:
            log.warning("TransferEngine: %s: %s", target, error)
            return FAILED
        return OK

    def _submit(
        self,
        target: str,
        ours: Sequence[int] | U64,
        theirs: Sequence[int] | U64,
        nbytes: Sequence[int] | U64,
        opcode: TransferOpcode,
    ) -> int:
        if not len(ours) == len(theirs) == len(nbytes) or self._parts is None:
            return 0
        return self._jobs.submit(lambda: self._move(target, ours, theirs, nbytes, opcode))


TransferEngine.TransferOpcode = TransferOpcode  # type: ignore[attr-defined]


def _array(number: int) -> U64:
    return np.array([number], np.uint64)


def _nothing() -> None:
    """A hold that ends by itself at once."""
