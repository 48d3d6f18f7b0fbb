"""The same shelf on fsspec: a local filesystem, its memory filesystem, and S3 where moto is."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from moonpool.errors import ConfigError
from moonpool.ssd.reading import STORED, Wanted
from moonpool.ssd.remote import RemoteVolume
from moonpool.ssd.shelf import Shelf
from moonpool.ssd.spans import Item
from tests.unit.ssd.disk import Memory, item_of, value_of

fsspec = pytest.importorskip("fsspec")
MIB = 1 << 20


@pytest.fixture(params=["file", "memory", "s3"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    name = uuid.uuid4().hex
    if request.param == "s3":
        pytest.importorskip("s3fs")
        server = pytest.importorskip("moto.server").ThreadedMotoServer(port=0)
        server.start()
        host, port = server.get_host_and_port()
        options = {"key": "k", "secret": "s", "endpoint_url": f"http://{host}:{port}"}
        before = dict(fsspec.config.conf)
        fsspec.config.conf["s3"] = options
        fsspec.filesystem("s3").mkdir(f"bucket-{name}")
        yield f"s3://bucket-{name}/pool"
        fsspec.config.conf.clear()
        fsspec.config.conf.update(before)
        server.stop()
    else:
        yield f"file://{tmp_path}" if request.param == "file" else f"memory://{name}"


def _shelf(url: str) -> Shelf:
    return Shelf(RemoteVolume(url, "n1"), "n1", 64 * MIB, 4 * MIB)


def _items(memory: Memory, count: int, first: int = 0) -> list[Item]:
    step = 128 * 1024
    return [
        item_of(memory, i * step, first + i, 1, 100_000 + i, first + i + 1) for i in range(count)
    ]


def _read(shelf: Shelf, items: list[Item], room: Memory, first: int = 0) -> None:
    step = 128 * 1024
    wanted = [
        Wanted(item.key, item.generation, item.size, item.checksum, room.address + i * step)
        for i, item in enumerate(items)
    ]
    assert shelf.read(wanted) == [STORED] * len(items)
    for i, item in enumerate(items):
        got = room.bytes[i * step : i * step + item.size].tobytes()
        assert got == value_of(first + i, 1, item.size)


def test_objects_come_back_after_a_restart_and_removed_ones_do_not(url: str) -> None:
    memory, room = Memory(8 * MIB), Memory(8 * MIB)
    shelf = _shelf(url)
    items = _items(memory, 10)
    assert shelf.write(items) == [STORED] * 10
    _read(shelf, items, room)
    shelf.drop([(items[0].key, items[0].generation)])
    shelf.close()
    again = _shelf(url)
    assert {each.key for each in again.recover()} == {each.key for each in items[1:]}
    room.bytes[:] = 0
    _read(again, items[1:], room, 1)
    again.close()


def test_a_batch_is_an_extent_as_large_as_it_is(url: str) -> None:
    memory = Memory(8 * MIB)
    shelf = _shelf(url)
    for first in range(0, 60, 10):
        assert shelf.write(_items(memory, 10, first)) == [STORED] * 10
    assert len(shelf.catalog.extents) == 6
    assert shelf.catalog.total_bytes < 7 * MIB
    shelf.catalog.validate()
    shelf.close()


def test_what_is_gone_is_a_miss(url: str) -> None:
    memory, room = Memory(8 * MIB), Memory(8 * MIB)
    shelf = _shelf(url)
    items = _items(memory, 2)
    shelf.write(items)
    fs, root = fsspec.core.url_to_fs(url)
    fs.rm_file(f"{root}/n1/00000001.data")
    wanted = [Wanted(i.key, i.generation, i.size, i.checksum, room.address) for i in items[:1]]
    assert shelf.read(wanted) == ["gone"]
    shelf.close()


def test_a_directory_has_one_node_until_it_is_gone(url: str) -> None:
    first = RemoteVolume(url, "n1")
    with pytest.raises(ConfigError, match="in use by a node 'n1'"):
        RemoteVolume(url, "n1")
    RemoteVolume(url, "n2").close()
    first.close()
    fs, root = fsspec.core.url_to_fs(url)
    for said in (
        {"host": "elsewhere", "pid": 1, "until": time.time() - 1},
        {"until": "never"},
        ["what"],
    ):
        fs.pipe_file(f"{root}/n1/owner", json.dumps(said).encode())
        RemoteVolume(url, "n1").close()
    fs.pipe_file(
        f"{root}/n1/owner", json.dumps({"host": "elsewhere", "until": time.time() + 60}).encode()
    )
    with pytest.raises(ConfigError, match="elsewhere"):
        RemoteVolume(url, "n1")


@pytest.mark.parametrize("wrong", ["nosuch://x", "s3fake://bucket"])
def test_a_url_of_nothing_is_a_configuration_error(wrong: str) -> None:
    with pytest.raises(ConfigError, match="ssd"):
        RemoteVolume(wrong, "n1")
