"""``moonpool up --ssd DIR[:SIZE]``."""

from __future__ import annotations

import pytest

from moonpool.config import NodeConfig, load
from moonpool.demo.up_config import UpConfig
from moonpool.errors import ConfigError


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
    assert found.pop("ssd_save_s", 0) == (NodeConfig().ssd_save_s if text else 0)
    assert found == disk


def test_how_long_the_end_may_take_is_the_nodes() -> None:
    found = load(UpConfig, flags={"ssd": "/nvme/pool", "ssd_save_s": "120"}, env={}).disk()
    assert found == {"ssd": "/nvme/pool", "ssd_save_s": 120.0}


def test_a_split_needs_the_pool() -> None:
    with pytest.raises(ConfigError, match="alone"):
        load(UpConfig, flags={"alone": True, "prefill": 1, "decode": 1}, env={})
    assert load(UpConfig, flags={"alone": True}, env={}).alone
