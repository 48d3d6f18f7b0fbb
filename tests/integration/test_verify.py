"""Bytes that change in the memory of this host, behind the pool's back."""

from __future__ import annotations

from pathlib import Path

import pytest

from moonpool import Store
from moonpool.errors import ChecksumError
from tests.integration.processes import pool

VALUES = {"small": b"a few bytes, said once", "large": bytes(range(256)) * 8192}


@pytest.mark.parametrize("name", VALUES)
def test_what_has_changed_in_shared_memory_is_found_if_that_is_asked_for(
    tmp_path: Path, name: str
) -> None:
    value = VALUES[name]
    with (
        pool(tmp_path, size="64MB") as (master, (node,)),
        Store.connect(master.address, verify=True) as careful,
        Store.connect(master.address) as trusting,
    ):
        careful.put(name, value)
        assert careful.get(name) == value
        assert careful.get_batch([name]) == [value]
        (path,) = node.segment_dir.glob("**/*.seg")
        content = path.read_bytes()
        with path.open("r+b") as file:
            file.seek(content.index(value[:20]) + 7)
            file.write(b"\0")
        with pytest.raises(ChecksumError):
            careful.get(name)
        assert careful.get_batch([name]) == [None]
        # Memory is trusted otherwise: to hash each byte would cost most of the speed.
        assert trusting.get(name) != value
