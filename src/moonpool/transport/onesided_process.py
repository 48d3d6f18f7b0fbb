"""The carrier: ``python -m moonpool.transport.onesided_process FD LEASH``, one engine and its
memory.

One thread takes orders from the socket FD and looks after what is under way. It ends with the
process that started it.
"""

from __future__ import annotations

import fcntl
import logging
import mmap
import os
import select
import socket
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from moonpool.errors import MoonpoolError, ProtocolError, TransferError
from moonpool.protocol.data import DataMessage
from moonpool.transport import leash
from moonpool.transport import onesided_engine as said
from moonpool.transport.onesided_engine import Engine, EngineError, Pull, Region, Setup
from moonpool.transport.wire import Wire

_log = logging.getLogger(__name__)

IDLE_S = 1.0
SPINS = 200
NAP_S = 50e-6
PULLS_MAX = 1024
ORDER_S = 10.0

OpenGpu = Callable[[bytes, int], int]
"""From a CUDA IPC handle and a device's number to the memory's address here."""


class Memory(NamedTuple):
    """A mapped and registered region."""

    base: int
    nbytes: int
    kind: str
    device: int
    keep: object


class _Job:
    """One Fetch that is under way."""

    def __init__(self, order: said.Fetch, memory: Memory) -> None:
        targets, sources = said.rows(order.targets), said.rows(order.sources)
        lengths = said.rows(order.lengths)
        if not len(targets) == len(sources) == len(lengths) == sum(order.phases):
            raise ProtocolError("a Fetch whose arrays differ in length")
        room = np.uint64(memory.nbytes)
        if (lengths > room - np.minimum(targets, room)).any():
            raise ProtocolError("a Fetch outside its region")
        self.order, self.memory = order, memory
        self._cuts = np.cumsum([0, *order.phases]).tolist()
        self._rows = (targets + np.uint64(memory.base), sources, lengths)
        self._phase = 0
        self._pull: Pull | None = None

    def step(self, engine: Engine) -> bool:
        """Go on as far as possible without waiting; tell whether all is done."""
        while True:
            if self._pull is None:
                if self._phase == len(self.order.phases):
                    return True
                self._begin(engine)
            elif self._pull.done():
                self._finish()
            else:
                return False

    def drop(self) -> None:
        """Give up; bytes may still arrive until the process ends."""
        if self._pull is not None:
            pull, self._pull = self._pull, None
            pull.end()

    def _begin(self, engine: Engine) -> None:
        first, last = self._cuts[self._phase : self._phase + 2]
        self._phase += 1
        targets, sources, lengths = (each[first:last] for each in self._rows)
        some = lengths != 0
        if some.any():
            ends = self.order.note and self._phase == len(self.order.phases)
            theirs = said.GPU_MEMORY if self.order.gpu else said.HOST_MEMORY
            self._pull = engine.pull(
                self.order.peer,
                targets[some],
                sources[some],
                lengths[some],
                (self.memory.kind, self.memory.device),
                (theirs, self.order.device),
                ends,
            )

    def _finish(self) -> None:
        if self._pull is not None:
            pull, self._pull = self._pull, None
            pull.end()


class Carrier:
    """Serves orders until the other end of the wire is gone."""

    def __init__(self, wire: Wire, setup: Setup, open_gpu: OpenGpu | None) -> None:
        self._wire = wire
        self._engine = said.load(setup)
        self._memory = [_opened(region, open_gpu) for region in setup.regions]
        for each in self._memory:
            self._engine.register(each.base, each.nbytes, each.kind, each.device)
        self._jobs: list[_Job] = []
        self._peers: set[str] = set()
        self._notes = 0
        bases = [each.base for each in self._memory]
        self._say(said.Ready(self._engine.describe(), bases, list(self._engine.backends)))

    def run(self) -> None:
        """Serve."""
        poll = select.poll()
        poll.register(self._wire.fileno(), select.POLLIN | select.POLLRDHUP)
        spins = 0
        while True:
            if poll.poll(0 if self._jobs else IDLE_S * 1000):
                self._wire.within(ORDER_S)
                self._obey(said.decode_order(self._wire.receive()))
                spins = 0
            if self._jobs:
                if self._advance():
                    spins = 0
                elif spins > SPINS:
                    time.sleep(NAP_S)
                else:
                    spins += 1
            else:
                self._collect_notes()

    def _obey(self, order: said.Connect | said.Disconnect | said.Fetch) -> None:
        if isinstance(order, said.Disconnect):
            if order.peer in self._peers:
                self._peers.discard(order.peer)
                self._try_quietly(order.peer)
            return
        try:
            if isinstance(order, said.Connect):
                peer = self._engine.connect(order.description)
                self._peers.add(peer)
                self._say(said.Connected(order.id, peer))
            else:
                self._begin(order)
        except MoonpoolError as error:
            self._say(said.Failed(order.id, str(error)))

    def _try_quietly(self, peer: str) -> None:
        try:
            self._engine.disconnect(peer)
        except TransferError as error:
            _log.debug("%s: %s", peer, error)

    def _begin(self, order: said.Fetch) -> None:
        if order.peer not in self._peers or not 0 <= order.region < len(self._memory):
            raise TransferError(f"no peer {order.peer!r} or no region {order.region}")
        if len(self._jobs) >= PULLS_MAX:
            raise TransferError(f"{PULLS_MAX} transfers are under way")
        self._jobs.append(_Job(order, self._memory[order.region]))

    def _advance(self) -> bool:
        """Look after everything once; tell whether anything ended."""
        left = []
        for job in self._jobs:
            try:
                if not job.step(self._engine):
                    left.append(job)
                    continue
                answer: said.Fetched | said.Failed = said.Fetched(job.order.id)
            except MoonpoolError as error:
                answer = said.Failed(job.order.id, str(error))
            self._drop(job)
            self._say(answer)
        ended = len(left) < len(self._jobs)
        self._jobs = left
        return ended

    def _drop(self, job: _Job) -> None:
        try:
            job.drop()
        except TransferError as error:
            _log.debug("transfer %d: %s", job.order.id, error)

    def _collect_notes(self) -> None:
        came = self._engine.notes()
        if came:
            self._notes += came
            self._say(said.Noted(self._notes))

    def _say(self, report: DataMessage) -> None:
        self._wire.within(ORDER_S)
        self._wire.send(report)


def _opened(region: Region, open_gpu: OpenGpu | None) -> Memory:
    """Map a region. Raises OSError, TransferError."""
    if region.gpu_handle:
        if open_gpu is None:
            raise TransferError("this carrier cannot open a GPU's memory")
        base = open_gpu(region.gpu_handle, region.device) + region.gpu_offset
        return Memory(base, region.nbytes, said.GPU_MEMORY, region.device, None)
    lock = None
    if region.users:
        lock = os.open(region.users, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    fd = region.fd
    if region.path:
        fd = os.open(region.path, os.O_RDWR | os.O_CLOEXEC)
    mapped = mmap.mmap(fd, region.nbytes)
    array: npt.NDArray[np.uint8] = np.frombuffer(mapped, np.uint8)
    if region.path:
        os.close(fd)
    return Memory(int(array.ctypes.data), region.nbytes, said.HOST_MEMORY, 0, (array, lock))


def main(open_gpu: OpenGpu | None = None) -> None:
    """Serve the process that started this one."""
    sock = socket.socket(fileno=int(sys.argv[1]))
    leash.tie(int(sys.argv[2]))
    wire = Wire(sock)
    wire.within(ORDER_S)
    status = 1
    try:
        setup = said.decode_setup(wire.receive())
        Carrier(wire, setup, open_gpu).run()
    except (EngineError, TransferError, OSError, ProtocolError) as error:
        wire.send(said.Failed(0, str(error)[:500]))
    except Exception as error:  # noqa: BLE001  (whatever the engine raises is told)
        wire.send(said.Failed(0, repr(error)[:500]))
    finally:
        # The libraries' own ends are not always clean, and nothing here needs them.
        os._exit(status)


if __name__ == "__main__":
    main()
