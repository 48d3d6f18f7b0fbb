"""The metadata server's answers are those of Mooncake's."""

from __future__ import annotations

from collections.abc import AsyncIterator
from http import HTTPStatus

import aiohttp
import pytest

from moonpool.compat.commands import metadata_server
from moonpool.compat.commands.metadata_server import MetadataServer


@pytest.fixture
async def url() -> AsyncIterator[str]:
    server = MetadataServer("127.0.0.1", 0)
    server.start()
    try:
        yield f"http://127.0.0.1:{server.port}"
    finally:
        server.close()
        server.close()
    assert not server.alive


async def ask(url: str, method: str, body: bytes = b"") -> tuple[int, bytes]:
    async with aiohttp.ClientSession() as session, session.request(method, url, data=body) as reply:
        return reply.status, await reply.read()


async def test_put_get_delete(url: str) -> None:
    key = f"{url}/metadata?key=mooncake/ram/a"
    assert await ask(key, "GET") == (404, b"metadata not found")
    assert await ask(key, "PUT", b'{"x": 1}') == (200, b"metadata updated")
    assert await ask(key, "GET") == (200, b'{"x": 1}')
    assert await ask(key, "PUT", b"{}") == (200, b"metadata updated")
    assert await ask(key, "DELETE") == (200, b"metadata deleted")
    assert await ask(key, "DELETE") == (404, b"metadata not found")
    assert await ask(f"{url}/metadata", "GET") == (400, b"metadata key is required")
    assert await ask(key, "POST", b"x") == (405, b"Method not allowed")
    assert await ask(f"{url}/health", "GET") == (200, b"OK")


async def test_two_engines_of_one_name_are_not_mixed_up(url: str) -> None:
    key = f"{url}/metadata?key=mooncake/rpc_meta/host:1"
    assert (await ask(key, "PUT", b"here"))[0] == HTTPStatus.OK
    assert (await ask(key, "PUT", b"here"))[0] == HTTPStatus.OK
    assert (await ask(key, "PUT", b"there"))[0] == HTTPStatus.BAD_REQUEST
    assert await ask(key, "GET") == (200, b"here")


async def test_what_it_holds_is_bounded(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata_server, "KEYS_MAX", 2)
    monkeypatch.setattr(metadata_server, "HELD_BYTES_MAX", 100)
    sent = [await ask(f"{url}/metadata?key=k{i}", "PUT", b"x" * 30) for i in range(3)]
    assert [status for status, _ in sent] == [200, 200, 507]
    assert (await ask(f"{url}/metadata?key=k1", "PUT", b"x" * 80))[0] == 507
    assert (await ask(f"{url}/metadata?key=k1", "PUT", b"x" * ((1 << 19) + 1)))[0] == 413
    assert (await ask(f"{url}/metadata?key={'k' * 5000}", "PUT", b"x"))[0] == 400
