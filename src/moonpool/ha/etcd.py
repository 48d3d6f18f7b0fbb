"""The election's record in etcd."""

from __future__ import annotations

from typing import Any

import aiohttp

from moonpool.config_ha import ElectionStore
from moonpool.ha import etcd_wire as wire
from moonpool.ha.backend import BackendError
from moonpool.ha.election import Answer, Record, Seen


class EtcdBackend:
    """A Backend. Endpoints are tried in turn, the one that answered last first."""

    def __init__(self, store: ElectionStore) -> None:
        self._store = store
        self._urls = wire.urls_of(store)
        self._session: aiohttp.ClientSession | None = None
        self._token = ""

    async def read(self) -> Seen:
        """See Backend."""
        return wire.parse_range(await self._ask(wire.RANGE, wire.ranged(self._store)))

    async def write(self, record: Record, version: str) -> Answer:
        """See Backend."""
        body = wire.txn(self._store, record, version)
        return wire.parse_txn(await self._ask(wire.TXN, body))

    async def close(self) -> None:
        """See Backend."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _ask(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        why = ""
        for _ in self._urls:
            url = self._urls[0]
            # Whatever ends this, also being cancelled, the next call begins with another endpoint.
            self._urls.append(self._urls.pop(0))
            try:
                found = await self._ask_one(url, path, body)
            except BackendError as error:
                why = str(error)
            except (aiohttp.ClientError, OSError) as error:
                why = f"{url}: {error}"
                # With the certificates as they are by then: they may have been renewed.
                if self._store.access.tls:
                    await self.close()
            else:
                self._urls.insert(0, self._urls.pop())
                return found
        raise BackendError(f"etcd: {why}")

    async def _ask_one(self, url: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Ask an endpoint, with a new token if it does not know the one that we have."""
        access = self._store.access
        if access.user and not self._token:
            self._token = await self._login(url)
        status, raw = await self._post(url + path, body)
        if status == wire.UNKNOWN_TOKEN and access.user:
            self._token = await self._login(url)
            status, raw = await self._post(url + path, body)
        return _parsed(url, status, raw)

    async def _login(self, url: str) -> str:
        self._token = ""
        said = await self._post(url + wire.LOGIN, wire.login(self._store.access))
        return wire.parse_token(_parsed(url, *said))

    async def _post(self, url: str, body: dict[str, Any]) -> tuple[int, bytes]:
        if self._session is None:
            context = wire.trusted(self._store.access)
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(ssl=True if context is None else context)
            )
        headers = {"Authorization": self._token} if self._token else {}
        async with self._session.post(url, json=body, headers=headers) as response:
            return response.status, await response.content.read(wire.ANSWER_BYTES_MAX)


def _parsed(url: str, status: int, raw: bytes) -> dict[str, Any]:
    if status != 200:
        raise BackendError(f"{url} answered {status}: {raw[:120]!r}")
    return wire.parse(raw)
