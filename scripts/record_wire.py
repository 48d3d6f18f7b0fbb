"""Record what a node and a client say to a master, and what it answers: one JSON line a frame.

    python scripts/record_wire.py OUT.jsonl

Whatever moonpool this Python imports is recorded. The file is kept as a test of later masters
(tests/unit/protocol/test_recorded.py); record one for each release before its protocol changes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import queue
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from moonpool import Key, Store
    from moonpool.core.messages import Status

SIZE = "8MB"


class Recorder:
    """Passes connections on to a master and notes every frame."""

    def __init__(self, port: int) -> None:
        self.lines: list[dict[str, object]] = []
        self._port = port
        self._count = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._count += 1
        number = self._count
        inner = await asyncio.open_connection("127.0.0.1", self._port)
        with contextlib.suppress(ConnectionError):
            await asyncio.gather(
                self._pass(number, "to master", reader, inner[1]),
                self._pass(number, "from master", inner[0], writer),
            )
        self.lines.append({"connection": number, "way": "end", "frame": ""})

    async def _pass(
        self, number: int, way: str, source: asyncio.StreamReader, target: asyncio.StreamWriter
    ) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await source.readexactly(4)
                body = await source.readexactly(int.from_bytes(head, "little"))
                self.lines.append({"connection": number, "way": way, "frame": body.hex()})
                target.write(head + body)
                await target.drain()
        with contextlib.suppress(ConnectionError):
            target.close()


def wait(store: Store, until: Callable[[Status], object]) -> None:
    """Ask for the pool's status until it is as wanted."""
    deadline = time.monotonic() + 10
    while not until(store.status()):
        assert time.monotonic() < deadline
        time.sleep(0.2)


def drive(address: str, again: Callable[[bool], None]) -> None:
    """Use every verb that a client has; ``again`` kills the node and starts it once more, without
    what was in its memory if it is told so."""
    from moonpool import Store, pack

    with Store.connect(address, name="recorded", transports=("tcp",), connections=1) as store:
        keys = [pack(bytes([i + 1]) * 16, b"fingerprint") for i in range(8)]
        values = [bytes([i]) * (1000 + i) for i in range(8)]
        parents = [None, *keys[:-1]]
        assert store.put_batch(keys, values, parents=parents) == [0] * 8
        assert not store.put(keys[0], b"taken")
        assert store.put("text", b"x" * 5000)
        wait(store, lambda status: status.disks[0].objects == 9)
        again(False)
        wait(store, lambda status: status.segments and status.disks and status.disks[0].ready)
        assert store.get_batch([*keys, "missing"]) == [*values, None]
        assert store.get("text") == b"x" * 5000
        assert store.match_prefix(keys) == 8
        assert (
            store.match_digests(b"fingerprint", b"".join(bytes([i + 1]) * 16 for i in range(9)))
            == 8
        )
        assert store.exists_batch([*keys, "missing"]) == [True] * 8 + [False]
        lease = store.hold(keys, 5.0)
        store.release(lease)
        assert store.stat(keys[3]).size == 1003
        assert len(list(store.list())) == 9
        drive_since_2(store, keys)
        if hasattr(store, "pin"):
            drive_since_4(store, keys)
        again(True)
        wait(store, lambda status: status.segments and status.disks and status.disks[0].ready)
        digests = b"".join(bytes([i + 1]) * 16 for i in range(8))
        assert store.match_digests(b"fingerprint", digests) == 8
        assert store.prefetch(b"fingerprint", digests) == 8
        assert store.get_batch(keys) == values
        assert store.get("text") == b"x" * 5000
        store.remove("text")
        assert store.remove_batch([keys[7]]) == [0]
        assert store.remove_all() == 7


def drive_since_2(store: Store, keys: Sequence[Key]) -> None:
    """Go through a handoff."""
    from moonpool.core.messages import ENDED, OPEN, Awaited, News

    answers: queue.Queue[Awaited | None] = queue.Queue()
    store.tell([News("transfer", 1, OPEN)])
    store.watch(keys, "transfer", 5.0, answers.put)
    answer = answers.get(timeout=10)
    assert answer is not None
    assert answer.count == 8
    store.tell([News("transfer", 1, ENDED)])


def drive_since_4(store: Store, keys: Sequence[Key]) -> None:
    """Pin, unpin, use a session and end it."""
    assert store.pin([keys[0], b"\0missing"]) == [0, -704]
    assert store.pin([keys[1]], soft_s=5.0) == [0]
    assert store.unpin(keys[:2]) == [0, 0]
    store.use_session("chat", [keys[7]])
    assert store.end_session("chat") == 8


async def main() -> str:
    folder = Path(tempfile.mkdtemp(prefix="moonpool-record-"))
    segments = Path(tempfile.mkdtemp(prefix="moonpool-record-", dir="/dev/shm"))
    kept = {k: v for k, v in os.environ.items() if not k.startswith("MOONPOOL_")}
    processes = []

    async def start(role: str, **keys: object) -> int:
        ready = folder / role
        words = [f"{key}={value}" for key, value in (keys | {"ready_file": ready}).items()]
        command = sys.executable, "-m", f"moonpool.{role}", *words
        processes.append(await asyncio.create_subprocess_exec(*command, env=kept))
        async with asyncio.timeout(30):
            while not ready.exists():  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        return int(json.loads(ready.read_text())["port"])

    try:
        # Without a table in shared memory clients do not leave the port for a Unix socket.
        port = await start("master", port=0, http_port=0, board_dir="/proc/none")
        recorder = Recorder(port)
        server = await asyncio.start_server(recorder.serve, "127.0.0.1", 0)
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        loop = asyncio.get_running_loop()
        node = {"port": 0, "name": "n", "master": address, "size": SIZE, "segment_dir": segments}
        node |= {"ssd": folder / "disk", "ssd_size": "16MB", "ssd_policy": "write-through"}

        async def restart(lose: bool) -> None:
            processes[-1].kill()
            await processes[-1].wait()
            (folder / "node").unlink()
            if lose:
                shutil.rmtree(segments)
            await start("node", **node)
            await asyncio.sleep(1)

        def again(lose: bool) -> None:
            asyncio.run_coroutine_threadsafe(restart(lose), loop).result(60)

        await start("node", **node)
        await asyncio.sleep(1)  # what the node says by itself
        await asyncio.to_thread(drive, address, again)
        processes[-1].terminate()
        await processes[-1].wait()
        await asyncio.sleep(0.5)
        server.close()
        return "".join(json.dumps(line) + "\n" for line in recorder.lines)
    finally:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            await process.wait()
        shutil.rmtree(folder)
        shutil.rmtree(segments, ignore_errors=True)


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(asyncio.run(main()))
