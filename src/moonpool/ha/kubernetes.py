"""The election's record in a Lease of Kubernetes: its account needs get, create and update."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp

from moonpool.config_ha import ElectionStore
from moonpool.ha import lease_wire as wire
from moonpool.ha.backend import BackendError
from moonpool.ha.election import Answer, Record, Seen, Written

_CONFLICT = 409
_MISSING = 404


class LeaseBackend:
    """A Backend. base: the API server's URL; account: the folder of its token and authority."""

    def __init__(self, store: ElectionStore, base: str, account: Path | None = None) -> None:
        self._store = store
        self._url = base + wire.leases_path(store)
        self._account = account or wire.account()
        self._known: Any = None
        self._session: aiohttp.ClientSession | None = None

    @classmethod
    def in_cluster(cls, store: ElectionStore) -> LeaseBackend:
        """Return the Lease in the cluster that this process runs in. Raises ConfigError."""
        return cls(store, wire.base_url())

    async def read(self) -> Seen:
        """See Backend."""
        status, raw = await self._ask("GET", f"{self._url}/{self._store.name}")
        if status == _MISSING:
            self._known = None
            return Seen("", None)
        return self._taken(status, raw)

    async def write(self, record: Record, version: str) -> Answer:
        """See Backend."""
        known = self._known if self._version() == version else None
        body = wire.lease_of(self._store, record, version, known, datetime.now(UTC))
        if version:
            status, raw = await self._ask("PUT", f"{self._url}/{self._store.name}", body)
        else:
            status, raw = await self._ask("POST", self._url, body)
        if status in (_CONFLICT, _MISSING):
            return await self.read()
        return Written(self._taken(status, raw).version)

    async def close(self) -> None:
        """See Backend."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    def _version(self) -> str:
        return "" if self._known is None else str(self._known["metadata"]["resourceVersion"])

    def _taken(self, status: int, raw: bytes) -> Seen:
        if status not in (200, 201):
            raise BackendError(f"the API server answered {status}: {raw[:120]!r}")
        lease = wire.parse(raw)
        seen = wire.seen_in(lease)
        self._known = lease
        return seen

    async def _ask(self, method: str, url: str, body: Any = None) -> tuple[int, bytes]:
        try:
            if self._session is None:
                connector = aiohttp.TCPConnector(ssl=wire.trusted(self._account))
                self._session = aiohttp.ClientSession(connector=connector)
            headers = wire.headers(self._account)
            asked = self._session.request(method, url, json=body, headers=headers)
            async with asked as response:
                return response.status, await response.content.read(wire.ANSWER_BYTES_MAX)
        except (aiohttp.ClientError, OSError) as error:
            raise BackendError(f"the API server: {error}") from None
