"""The pool of ``moonpool up`` with a disk: what is in memory only is written before it ends."""

from __future__ import annotations

import random
import socket
import tempfile
from pathlib import Path

from moonpool import Store
from moonpool.demo.process import GRACE_S
from moonpool.demo.stack import stack_on
from moonpool.demo.up_config import UpConfig
from tests.integration.processes import SHM

KEYS = [f"kept-{i}" for i in range(60)]


def value_of(key: str) -> bytes:
    return random.Random(key).randbytes(500_000)


async def test_what_was_only_in_memory_is_there_after_a_restart(tmp_path: Path) -> None:
    config = UpConfig(ssd=f"{tmp_path}/disk:256MB", ssd_save_s=100.0)
    for turn in ("put", "get"):
        run_dir = tmp_path / turn
        run_dir.mkdir()
        with (
            socket.create_server(("127.0.0.1", 0)) as sock,
            tempfile.TemporaryDirectory(prefix="moonpool-test-", dir=SHM) as segments,
        ):
            async with stack_on(sock, run_dir) as stack:
                pool = await stack.start_pool(64 << 20, Path(segments), config.disk())
                master, node = pool.children
                assert (master.grace_s, node.grace_s) == (GRACE_S, GRACE_S + 100.0)
                with Store.connect(pool.master, timeout_s=30.0) as store:
                    values = [value_of(key) for key in KEYS]
                    if turn == "put":
                        assert not any(store.put_batch(KEYS, values))
                    else:
                        assert store.get_batch(KEYS) == values
