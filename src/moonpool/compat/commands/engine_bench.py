"""``transfer_engine_bench``: how many bytes a second an initiator moves from and to a target."""

from __future__ import annotations

import ctypes
import logging
import mmap
import random
import signal
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any, Final

from moonpool.compat.commands import gflags
from moonpool.compat.commands.gflags import Flag
from moonpool.compat.engine import TransferEngine
from moonpool.errors import ConfigError, MoonpoolError

FLAGS: Final[dict[str, Flag]] = {
    "mode": Flag("str", "initiator"),
    "metadata_server": Flag("str", "P2PHANDSHAKE"),
    "local_server_name": Flag("str", "127.0.0.1"),
    "segment_id": Flag("str", ""),
    "protocol": Flag("str", "tcp"),
    "operation": Flag("str", "read"),
    "block_size": Flag("size", 65_536),
    "batch_size": Flag("int", 128),
    "threads": Flag("int", 12),
    "duration": Flag("int", 10),
    "buffer_size": Flag("size", 1 << 30),
    "report_unit": Flag("str", "GB"),
    "report_precision": Flag("int", 2),
    "device_name": Flag("str", ""),
    "backend": Flag("str", "classic"),
    "auto_discovery": Flag("bool", False),
    "nic_priority_matrix": Flag("str", ""),
}
UNITS: Final = {"GB": 1e9, "GiB": 1 << 30, "MB": 1e6, "MiB": 1 << 20, "KB": 1e3, "KiB": 1 << 10}
UNITS_BITS: Final = {"Gb": 1e9 / 8, "Mb": 1e6 / 8, "Kb": 1e3 / 8}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one side; return 0, 1 if transfers failed, or 2 for flags that cannot be used."""
    logging.basicConfig(level=logging.INFO, format="%(name)s %(levelname)s %(message)s")
    try:
        given = gflags.parse(sys.argv[1:] if arguments is None else arguments, FLAGS)
        said = {name: flag.default for name, flag in FLAGS.items()} | given.values
        for warning in given.warnings:
            logging.getLogger("moonpool.compat").warning("transfer_engine_bench: %s", warning)
        _check(said)
        return _target(said) if said["mode"] == "target" else _initiator(said)
    except MoonpoolError as error:
        print(f"transfer_engine_bench: {error}", file=sys.stderr)  # noqa: T201
        return 2


def _check(said: dict[str, Any]) -> None:
    allowed: dict[str, tuple[str, ...]] = {
        "mode": ("initiator", "target"),
        "operation": ("read", "write"),
    }
    allowed["report_unit"] = (*UNITS, *UNITS_BITS)
    for name, values in allowed.items():
        if said[name] not in values:
            one_of = ", ".join(values)
            raise ConfigError(f"--{name}: {said[name]!r} is not allowed; allowed: {one_of}")
    for name in ("block_size", "batch_size", "threads", "duration", "buffer_size"):
        if said[name] < 1:
            raise ConfigError(f"--{name}: {said[name]} is not allowed; allowed: 1 or more")
    if said["batch_size"] * said["block_size"] > said["buffer_size"]:
        raise ConfigError("--buffer_size: a batch of blocks does not fit into it")
    if said["mode"] == "initiator" and not said["segment_id"]:
        raise ConfigError("--segment_id: the target's host:port is missing")


def _engine(said: dict[str, Any]) -> tuple[TransferEngine, int, mmap.mmap]:
    engine = TransferEngine()
    names = ("local_server_name", "metadata_server", "protocol", "device_name")
    if engine.initialize(*(said[name] for name in names)):
        raise ConfigError("--local_server_name: the engine does not start with it")
    memory = mmap.mmap(-1, said["buffer_size"])
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    engine.register_memory(address, said["buffer_size"])
    return engine, address, memory


def _target(said: dict[str, Any]) -> int:
    engine, _, _memory = _engine(said)
    host = said["local_server_name"].partition(":")[0]
    print(f"target {host}:{engine.get_rpc_port()}", flush=True)  # noqa: T201
    signal.sigwait({signal.SIGINT, signal.SIGTERM})
    return 0


def _initiator(said: dict[str, Any]) -> int:
    engine, ours, _memory = _engine(said)
    theirs = engine.get_first_buffer_address(said["segment_id"])
    if not theirs:
        raise ConfigError(f"--segment_id: {said['segment_id']!r} has no engine with a buffer")
    done, failed = [0] * said["threads"], [0] * said["threads"]
    end = time.monotonic() + said["duration"]

    def work(number: int) -> None:
        chance = random.Random(number)
        move = getattr(engine, f"batch_transfer_sync_{said['operation']}")
        size, count = said["block_size"], said["batch_size"]
        blocks = said["buffer_size"] // size
        while time.monotonic() < end and not failed[number]:
            places = [size * chance.randrange(blocks) for _ in range(count)]
            # The remote buffer may be smaller; a target of the same flags is as large.
            code = move(
                said["segment_id"],
                [ours + at for at in places],
                [theirs + at for at in places],
                [size] * count,
            )
            done[number] += code == 0
            failed[number] += code != 0

    started = time.monotonic()
    threads = [threading.Thread(target=work, args=(i,)) for i in range(said["threads"])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    _report(said, sum(done), time.monotonic() - started)
    return 1 if any(failed) else 0


def _report(said: dict[str, Any], batches: int, seconds: float) -> None:
    unit, nbytes = said["report_unit"], batches * said["batch_size"] * said["block_size"]
    rate = nbytes / seconds / (UNITS | UNITS_BITS)[unit]
    print(  # noqa: T201
        f"Test completed: duration {seconds:.2f}, batch count {batches}, throughput "
        f"{rate:.{said['report_precision']}f} {unit}/s"
    )


if __name__ == "__main__":
    sys.exit(main())
