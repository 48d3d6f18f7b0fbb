"""The modules beside ``mooncake.store``."""

from __future__ import annotations

import asyncio
import importlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.compat.cases.bed import Api, raises, same

FIELDS = {
    "local_hostname": "host",
    "metadata_server": "P2PHANDSHAKE",
    "master_server_address": "127.0.0.1:1",
}


@contextmanager
def variables(**values: str) -> Iterator[None]:
    kept = dict(os.environ)
    for name in list(os.environ):
        if name.startswith("MOONCAKE_"):
            del os.environ[name]
    os.environ.update(values)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(kept)


def configs() -> Any:
    return importlib.import_module("mooncake.mooncake_config").MooncakeConfig


def loaded(**more: Any) -> Any:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text(json.dumps({**FIELDS, **more}))
        return configs().from_file(str(path))


def case_calls_that_are_awaited(api: Api) -> None:
    made = importlib.import_module("mooncake.async_store").MooncakeDistributedStoreAsync()

    async def use() -> list[Any]:
        place = "127.0.0.1", "P2PHANDSHAKE", 0, 16 << 20, "tcp", "", api.master
        found = [await made.async_setup(*place)]
        puts = await asyncio.gather(*(made.async_put(f"k{i}", b"v") for i in range(8)))
        found += [
            set(puts),
            await made.async_get("k3"),
            await made.async_batch_is_exist(["k1", "x"]),
        ]
        found += [await made.async_remove("k1", force=True), made.get("k2")]
        return [*found, await made.async_close()]

    same(asyncio.run(use()), [0, {0}, b"v", [1, 0], 0, b"v", 0])
    raises(AttributeError, lambda: made.async_nosuch)
    raises(AttributeError, lambda: made.nosuch)


def case_a_file_of_settings(api: Api) -> None:
    found = loaded()
    same((found.local_hostname, found.protocol, found.device_name), ("host", "tcp", ""))
    same((found.global_segment_size, found.local_buffer_size), (3_355_443_200, 1 << 30))
    same(
        (found.tenant_id, found.enable_ssd_offload, found.client_http_port),
        ("default", False, 9300),
    )
    found = loaded(global_segment_size="4GB", local_buffer_size="1.5m", protocol="RDMA")
    same((found.global_segment_size, found.local_buffer_size), (4 << 30, 3 << 19))
    same(found.protocol, "rdma")
    found = loaded(global_segment_size="16 kb", enable_ssd_offload="yes", client_http_port="5")
    same((found.global_segment_size, found.client_http_port), (16384, 5))
    same(found.enable_ssd_offload, True)
    same(loaded(protocol="nosuch").protocol, "nosuch")


def case_settings_that_cannot_be(api: Api) -> None:
    for more in (
        {"global_segment_size": ""},
        {"global_segment_size": "GB"},
        {"global_segment_size": "junk"},
        {"global_segment_size": -1},
        {"protocol": ""},
        {"protocol": 5},
        {"local_hostname": ""},
        {"master_server_address": None},
        {"enable_ssd_offload": "maybe"},
    ):
        raises(ValueError, lambda more=more: loaded(**more))
    with TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text("{}")
        raises(ValueError, configs().from_file, str(path))
        raises(FileNotFoundError, configs().from_file, str(path) + "x")


def case_settings_of_the_environment(api: Api) -> None:
    with variables():
        raises(ValueError, configs().load_from_env)
    with variables(MOONCAKE_MASTER="m:1"):
        found = configs().load_from_env()
        same((found.local_hostname, found.metadata_server), ("localhost", "P2PHANDSHAKE"))
        same((found.master_server_address, found.protocol), ("m:1", "tcp"))
        same(found.global_segment_size, 3_355_443_200)
    with variables(
        MOONCAKE_MASTER="m:1",
        MOONCAKE_PROTOCOL="rdma",
        MOONCAKE_DEVICE="mlx5_0",
        MOONCAKE_GLOBAL_SEGMENT_SIZE="2g",
        MOONCAKE_LOCAL_HOSTNAME="h",
        MOONCAKE_TENANT_ID="t",
    ):
        found = configs().load_from_env()
        same((found.protocol, found.device_name, found.tenant_id), ("rdma", "mlx5_0", "t"))
        same((found.global_segment_size, found.local_hostname), (2 << 30, "h"))
    with TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text(json.dumps(FIELDS))
        with variables(MOONCAKE_CONFIG_PATH=str(path), MOONCAKE_MASTER="m:1"):
            same(configs().load_from_env().master_server_address, "127.0.0.1:1")
