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
        if self._session is None:
            self._session = aiohttp.ClientSession()
        why = ""
        for _ in self._urls:
            url = self._urls[0]
            # Whatever ends this, also being cancelled, the next call begins with another endpoint.
            self._urls.append(self._urls.pop(0))
            try:
                async with self._session.post(url + path, json=body) as response:
                    raw = await response.content.read(wire.ANSWER_BYTES_MAX)
                    if response.status == 200:
                        found = wire.parse(raw)
                        self._urls.insert(0, self._urls.pop())
                        return found
                    why = f"{url} answered {response.status}: {raw[:120]!r}"
            except (aiohttp.ClientError, OSError) as error:
                why = f"{url}: {error}"
        raise BackendError(f"etcd: {why}")
