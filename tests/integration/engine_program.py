"""Runs under the shim or Mooncake's wheel: what TransferEngine answers, as a line of JSON.

Without arguments it starts itself a second time as the peer.
"""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
import time
from typing import Any

from mooncake.engine import (  # type: ignore[import-not-found]
    TransferEngine,
    TransferNotify,
    TransferOpcode,
)

NBYTES = 1 << 20


def buffer(fill: int) -> Any:
    return (ctypes.c_ubyte * NBYTES)(*([fill] * 100))


def started() -> Any:
    engine = TransferEngine()
    assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
    return engine


def peer() -> None:
    engine, data = started(), buffer(7)
    address = ctypes.addressof(data)
    assert engine.register_memory(address, NBYTES) == 0
    print(engine.get_rpc_port(), address, flush=True)  # noqa: T201
    for _ in sys.stdin:
        notes = [(note.name, note.msg) for note in engine.get_notifies()]
        print(json.dumps([list(data[:8]), notes]), flush=True)  # noqa: T201


def outcome(call: Any) -> Any:
    """Return what a call answers: a number, text, or the kind of exception."""
    try:
        return call()
    except TypeError:
        return "TypeError"


def ask(child: Any, port: str, address: int) -> dict[str, Any]:
    name = f"127.0.0.1:{port}"
    engine, data = started(), buffer(1)
    own = ctypes.addressof(data)
    found: dict[str, Any] = {}

    def note(what: str, call: Any) -> None:
        found[what] = outcome(call)

    def said() -> Any:
        child.stdin.write("\n")
        child.stdin.flush()
        return json.loads(child.stdout.readline())

    note("register", lambda: engine.register_memory(own, NBYTES))
    note("register again", lambda: engine.register_memory(own, NBYTES))
    note("register overlapping", lambda: engine.register_memory(own + 100, 100))
    note("write", lambda: engine.transfer_sync_write(name, own, address, 4))
    found["written"] = said()[0]
    note("read", lambda: engine.transfer_sync_read(name, own + 8, address + 2, 4))
    found["was read"] = list(data[8:13])
    note("over the end", lambda: engine.transfer_sync_write(name, own, address + NBYTES - 2, 4))
    note("outside", lambda: engine.transfer_sync_write(name, own, address + 2 * NBYTES, 4))
    note("nothing", lambda: engine.transfer_sync_write(name, own, address, 0))
    note("nobody", lambda: engine.transfer_sync_write("127.0.0.1:1", own, address, 4))
    note("no name", lambda: engine.transfer_sync_write("", own, address, 4))
    two = [own, own + 100], [address, address + 100], [50, 50]
    note("batch", lambda: engine.batch_transfer_sync_write(name, *two))
    note("ragged batch", lambda: engine.batch_transfer_sync_write(name, two[0], [address], [5, 5]))
    note("empty batch", lambda: engine.batch_transfer_sync_read(name, [], [], []))
    number = engine.batch_transfer_async_read(name, *two)
    found["a batch's number"] = number > 0
    note("its status", lambda: engine.get_batch_transfer_status([number]))
    note("no batches", lambda: engine.get_batch_transfer_status([]))
    note("async to nobody", lambda: engine.batch_transfer_async_read("127.0.0.1:1", *two))
    submitted = engine.transfer_submit_write(name, own, address, 50)
    deadline = time.monotonic() + 30
    while (state := engine.transfer_check_status(submitted)) == 0 and time.monotonic() < deadline:
        time.sleep(0.01)
    found["submitted"] = state
    word = TransferNotify("name", "word")
    write = TransferOpcode.Write
    note("with a word", lambda: engine.transfer_sync(name, own, address, 4, write, word))
    found["the word"] = heard(said)
    note("probe", lambda: engine.send_probe(name))
    note("probe of nobody", lambda: engine.send_probe("127.0.0.1:1"))
    note("first buffer", lambda: engine.get_first_buffer_address(name) == address)
    note("nobody's buffer", lambda: engine.get_first_buffer_address("127.0.0.1:1"))
    managed = engine.allocate_managed_buffer(4096)
    note("fill", lambda: engine.write_bytes_to_buffer(managed, b"hello", 5))
    found["filled"] = engine.read_bytes_from_buffer(managed, 5).decode()
    note("free", lambda: engine.free_managed_buffer(managed, 4096))
    note("wrong type", lambda: engine.transfer_sync_write(name, "x", address, 4))
    note("negative", lambda: engine.transfer_sync_write(name, own, address, -4))
    note("keyword", lambda: engine.register_memory(pointer=own, capacity=1))
    note("topology", lambda: sorted(json.loads(engine.get_local_topology()))[:1])
    note("unregister", lambda: engine.unregister_memory(own))
    note("unregister again", lambda: engine.unregister_memory(own))
    note("unregistered here", lambda: engine.transfer_sync_write(name, own, address, 4))
    child.kill()
    child.wait()
    note("the dead", lambda: engine.transfer_sync_write(name, own, address, 4))
    note("probe of the dead", lambda: engine.send_probe(name))
    return found


def heard(said: Any) -> Any:
    deadline = time.monotonic() + 30
    while not (notes := said()[1]) and time.monotonic() < deadline:
        time.sleep(0.05)
    return notes


if __name__ == "__main__":
    if len(sys.argv) > 1:
        peer()
    else:
        other = subprocess.Popen(
            [sys.executable, __file__, "peer"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        where = other.stdout.readline().split() if other.stdout else []
        print(json.dumps(ask(other, where[0], int(where[1]))))  # noqa: T201
