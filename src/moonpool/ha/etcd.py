"""The election's record in etcd, through its HTTP gateway (the v3 API as JSON).

The key is never deleted: it carries the epoch. Its ``mod_revision`` is the record's version.
"""

from __future__ import annotations

import base64
import json
from typing import Any

import aiohttp

from moonpool.config_ha import ElectionStore, address_text
from moonpool.errors import MoonpoolError
from moonpool.ha.backend import BackendError, pack, unpack
from moonpool.ha.election import Answer, Record, Seen, Written

ANSWER_BYTES_MAX = 1 << 20
RANGE = "/v3/kv/range"
TXN = "/v3/kv/txn"


class EtcdBackend:
    """A Backend. Endpoints are tried in turn, the one that answered last first."""

    def __init__(self, store: ElectionStore) -> None:
        self._urls = urls_of(store)
        self._key = key_of(store)
        self._session: aiohttp.ClientSession | None = None

    async def read(self) -> Seen:
        """See Backend. A linearizable read: etcd asks a quorum."""
        return parse_range(await self._ask(RANGE, {"key": _text(self._key)}))

    async def write(self, record: Record, version: str) -> Answer:
        """See Backend."""
        return parse_txn(await self._ask(TXN, txn(self._key, record, version)))

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
                    raw = await response.content.read(ANSWER_BYTES_MAX)
                    if response.status == 200:
                        found = parse(raw)
                        self._urls.insert(0, self._urls.pop())
                        return found
                    why = f"{url} answered {response.status}: {raw[:120]!r}"
            except (aiohttp.ClientError, OSError) as error:
                why = f"{url}: {error}"
        raise BackendError(f"etcd: {why}")


def urls_of(store: ElectionStore) -> list[str]:
    """Return the endpoints' base URLs."""
    return [f"http://{address_text(*each)}" for each in store.endpoints]


def key_of(store: ElectionStore) -> bytes:
    """Return the key of a pool's record."""
    return f"/moonpool/{store.name}/leader".encode()


def txn(key: bytes, record: Record, version: str) -> dict[str, Any]:
    """Return the transaction that replaces the record if it has this version."""
    name = _text(key)
    return {
        "compare": [
            {"key": name, "target": "MOD", "result": "EQUAL", "mod_revision": version or "0"}
        ],
        "success": [{"request_put": {"key": name, "value": _text(pack(record).encode())}}],
        "failure": [{"request_range": {"key": name}}],
    }


def parse(raw: bytes) -> dict[str, Any]:
    """Return an answer's JSON; raise BackendError."""
    try:
        found = json.loads(raw)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise BackendError("etcd answered with no JSON object")
    return found


def parse_range(answer: dict[str, Any]) -> Seen:
    """Return what a range of the one key found; raise BackendError."""
    try:
        if not answer.get("kvs"):
            return Seen("", None)
        (found,) = answer["kvs"]
        return Seen(str(int(found["mod_revision"])), unpack(base64.b64decode(found["value"])))
    except (MoonpoolError, LookupError, TypeError, ValueError) as error:
        raise BackendError(f"etcd answered a range oddly: {error}") from None


def parse_txn(answer: dict[str, Any]) -> Answer:
    """Return what a transaction did; raise BackendError."""
    try:
        if answer.get("succeeded") is True:
            return Written(str(int(answer["header"]["revision"])))
        return parse_range(answer["responses"][0]["response_range"])
    except (LookupError, TypeError, ValueError) as error:
        raise BackendError(f"etcd answered a transaction oddly: {error}") from None


def _text(raw: bytes) -> str:
    return base64.b64encode(raw).decode()
