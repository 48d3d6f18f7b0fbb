"""The router's view of a real pool: followed, lost with its master, and right again after it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

from moonpool import Store
from moonpool.core.keys import pack
from moonpool.router.pool import StorePool
from tests.integration.processes import eventually, pool

SPACE = bytes(range(16))
HASHES = [bytes([number]) * 32 for number in range(1, 41)]
BLOCK, OBJECT = 16, 64
WAIT_S = 60.0


class Viewer:
    """A pool's view in an event loop of its own, as a router has it."""

    def __init__(self, address: str) -> None:
        self.view = StorePool(address, SPACE, OBJECT)
        self._loop = asyncio.new_event_loop()
        self._task: asyncio.Task[None] | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._task = self._loop.create_task(self.view.run())
        self._loop.run_until_complete(asyncio.gather(self._task, return_exceptions=True))
        self._loop.close()

    def close(self) -> None:
        assert self._task is not None
        self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()

    def knows(self, tokens: int | None) -> Callable[[], bool]:
        return lambda: self.view.known(HASHES, BLOCK) == tokens

    def asked(self) -> int:
        asking = asyncio.run_coroutine_threadsafe(self.view.prefix(HASHES, BLOCK), self._loop)
        return asking.result(WAIT_S)


def _put(store: Store, *ends: int) -> None:
    for end in ends:
        assert store.put(pack(HASHES[end - 1][:16], SPACE), b"kv" * 500)


def test_a_view_follows_its_pool_through_a_master_s_death(tmp_path: Path) -> None:
    with pool(tmp_path) as (master, _), Store.connect(master.address) as store:
        _put(store, 4, 8)
        viewer = Viewer(master.address)
        try:
            eventually("it is followed", viewer.knows(8 * BLOCK), WAIT_S)
            _put(store, 12, 16)
            eventually("what comes is seen", viewer.knows(16 * BLOCK), WAIT_S)
            store.remove(pack(HASHES[11][:16], SPACE))
            eventually("what goes is seen", viewer.knows(8 * BLOCK), WAIT_S)
            assert viewer.view.hosts(HASHES, BLOCK) == {"127.0.0.1": 8 * BLOCK}
            before = viewer.view.feed.index.counts.snapshots
            master.kill()
            eventually("it is not believed any more", viewer.knows(None), WAIT_S)
            assert viewer.view.feed.describe()["current"] is False
            master.start()
            # The node announces what it has: all of it is known again, the removed one is not.
            eventually("it is followed again", viewer.knows(8 * BLOCK), WAIT_S)
            counts = viewer.view.feed.index.counts
            assert counts.gaps >= 1
            assert counts.snapshots > before
            assert viewer.asked() == 8 * BLOCK
        finally:
            viewer.close()
