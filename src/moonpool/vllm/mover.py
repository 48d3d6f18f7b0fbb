"""The mover: a process beside the engine that moves its KV blocks, so that the engine's process
only sends jobs and takes results, and its interpreter is never busy with bytes.

Started by the engine's worker as ``python -m moonpool.vllm.mover FD PARENT``; dies with it. Opens
the engine's GPU memory through CUDA IPC. Imports neither vLLM nor PyTorch: it starts quickly and
takes little memory.
"""

from __future__ import annotations

import ctypes
import dataclasses
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable

from moonpool.errors import MoonpoolError, ProtocolError
from moonpool.gpu import CudaCopier, Driver, ipc, open_driver
from moonpool.protocol.framing import FrameDecoder
from moonpool.vllm import mover_wire as wire
from moonpool.vllm import pools
from moonpool.vllm.executor import Executor, Memory
from moonpool.vllm.log import logger
from moonpool.vllm.pools import TRANSFER_TIMEOUT_S
from moonpool.vllm.stats import Tally

RECEIVE_BYTES = 1 << 20
_PR_SET_PDEATHSIG = 1


def main(opener: Callable[[], Driver] = open_driver) -> None:
    """Serve the engine at the other end of the socket until it goes away."""
    handle, parent = int(sys.argv[1]), int(sys.argv[2])
    die_with(parent)
    # Signals to the whole group are the engine's to obey: it closes the socket when it is over.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    level = os.environ.get("VLLM_LOGGING_LEVEL", "INFO")
    logging.basicConfig(
        level=level if level in ("DEBUG", "WARNING", "ERROR") else "INFO",
        format="%(asctime)s %(levelname)s moonpool mover[%(process)d]: %(message)s",
    )
    with socket.socket(fileno=handle) as sock:
        try:
            serve(sock, opener)
        except (OSError, ProtocolError) as error:
            logger.warning("the engine is gone: %s", error)
    # Threads that still wait for the network are no reason to stay.
    logging.shutdown()
    os._exit(0)


def die_with(parent: int) -> None:
    """Ask the kernel to end this process when its parent ends; end at once if it has."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def serve(sock: socket.socket, opener: Callable[[], Driver]) -> None:
    """Run the jobs that come over the socket; return when it is closed."""
    frames = FrameDecoder()
    executor: Executor | None = None
    notify = threading.Event()
    try:
        while data := sock.recv(RECEIVE_BYTES):
            for payload in frames.feed(data):
                message = wire.decode(payload)
                if isinstance(message, wire.Setup) and executor is None:
                    executor = _set_up(sock, message, opener, notify)
                    if executor is None:
                        return
                elif isinstance(message, wire.Begin) and executor is not None:
                    mark = None if message.mark == wire.NO_MARK else message.mark
                    executor.load([wire.load_job(load) for load in message.loads], mark)
                    executor.save([wire.save_job(save) for save in message.saves], mark)
                    executor.cancel(message.cancels)
                else:
                    raise ProtocolError(f"a {type(message).__name__} was not expected")
    finally:
        if executor is not None:
            executor.close()


def _set_up(
    sock: socket.socket, setup: wire.Setup, opener: Callable[[], Driver], notify: threading.Event
) -> Executor | None:
    """Open the engine's memory and say whether that worked."""
    try:
        executor = make_executor(setup, opener(), notify.set)
    except MoonpoolError as error:
        sock.sendall(wire.encode(wire.Ready(str(error))))
        return None
    executor.start()
    sock.sendall(wire.encode(wire.Ready()))
    threading.Thread(
        target=_report, args=(sock, executor, notify), name="moonpool-report", daemon=True
    ).start()
    return executor


def make_executor(setup: wire.Setup, driver: Driver, notify: Callable[[], None]) -> Executor:
    """Return what runs the jobs, on the engine's memory as it is mapped here.

    Raises GpuError, ProtocolError.
    """
    mapped = [ipc.open(driver, region.shared) for region in setup.regions]
    theirs = [wire.table_of(table) for table in setup.tables]
    tables = tuple(
        dataclasses.replace(one, bases=wire.moved(one.bases, setup.regions, mapped))
        for one in theirs
    )
    regions = tuple(
        (address, region.nbytes) for address, region in zip(mapped, setup.regions, strict=True)
    )
    scratch = tuple(
        address
        for address, region in zip(mapped, setup.regions, strict=True)
        if region.address == setup.scratch
    )
    copier = CudaCopier(driver)
    events = [driver.event_open(handle) for handle in setup.events]
    chosen = setup.settings
    return Executor(
        chosen,
        Memory(tables, regions, scratch),
        lambda: pools.open_pool(chosen, setup.name, TRANSFER_TIMEOUT_S, copier),
        device="cuda",
        copier=copier,
        events=events,
        foreign=True,
        tally=Tally(),
        notify=notify,
    )


def _report(sock: socket.socket, executor: Executor, notify: threading.Event) -> None:
    """Send results as they come."""
    try:
        while True:
            notify.wait()
            notify.clear()
            loads, saves = executor.take()
            if loads or saves:
                message = wire.Ended(loads, saves, executor.tally.take())
                sock.sendall(wire.encode(message))
    except (OSError, ProtocolError):
        # The reading thread sees the same end.
        return


if __name__ == "__main__":
    main()
