"""A put that breaks off on its way to a node, and the next put of the same key."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from moonpool import Store
from moonpool.errors import AlreadyExistsError, MoonpoolError
from tests.integration.processes import freeze, pool

VALUE = bytes(range(256)) * 4096


def test_a_key_is_free_as_soon_as_its_put_has_broken_off(tmp_path: Path) -> None:
    """The stopped node may write what it has of the first put long after the second."""
    with (
        pool(tmp_path, size="64MB") as (master, (node,)),
        Store.connect(master.address, transports=("tcp",), timeout_s=1.0) as store,
        Store.connect(master.address, name="other") as other,
    ):
        store.put("warm", VALUE)
        pid = node.process.pid
        freeze(pid)
        try:
            with pytest.raises(MoonpoolError) as caught:
                store.put("key", VALUE)
            assert not isinstance(caught.value, AlreadyExistsError)
        finally:
            os.kill(pid, signal.SIGCONT)
        assert other.put("key", VALUE[::-1])
        assert other.get("key") == VALUE[::-1]
        assert store.get("key") == VALUE[::-1]
