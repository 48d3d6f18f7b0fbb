"""``moonpool up --ssd DIR[:SIZE]``."""

from __future__ import annotations

import pytest

from moonpool.config import load
from moonpool.demo.up_config import UpConfig


@pytest.mark.parametrize(
    ("text", "disk"),
    [
        ("", {}),
        ("/nvme/pool", {"ssd": "/nvme/pool"}),
        ("/nvme/pool:200GB", {"ssd": "/nvme/pool", "ssd_size": 200 << 30}),
        ("/nvme/with:colon", {"ssd": "/nvme/with:colon"}),
        ("s3://bucket/dir", {"ssd": "s3://bucket/dir"}),
        ("s3://bucket/dir:1GiB", {"ssd": "s3://bucket/dir", "ssd_size": 1 << 30}),
    ],
)
def test_where_and_how_much(text: str, disk: dict[str, object]) -> None:
    found = load(UpConfig, flags={"ssd": text} if text else {}, env={}).disk()
    assert bool(found.pop("ssd_save_s", 0)) == bool(text)
    assert found == disk
