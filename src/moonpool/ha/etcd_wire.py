"""What is said to etcd's HTTP gateway (the v3 API as JSON), and what it answers.

The key is never deleted: it carries the epoch. Its ``mod_revision`` is the record's version.
"""

from __future__ import annotations

import base64
import json
import ssl
from pathlib import Path
from typing import Any

from moonpool.config_ha import Access, ElectionStore, address_text
from moonpool.errors import MoonpoolError
from moonpool.ha.backend import BackendError, pack, unpack
from moonpool.ha.election import Answer, Record, Seen, Written

ANSWER_BYTES_MAX = 1 << 20
_ODD = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""What comes of an answer that is JSON, but of another shape."""
RANGE = "/v3/kv/range"
TXN = "/v3/kv/txn"
LOGIN = "/v3/auth/authenticate"
UNKNOWN_TOKEN = 401


def urls_of(store: ElectionStore) -> list[str]:
    """Return the endpoints' base URLs."""
    scheme = "https" if store.access.tls else "http"
    return [f"{scheme}://{address_text(*each)}" for each in store.endpoints]


def trusted(access: Access) -> ssl.SSLContext | None:
    """Return how to speak TLS, with the files as they are now; None where that is not wanted.

    Raises BackendError for files that cannot be used.
    """
    if not access.tls:
        return None
    try:
        context = ssl.create_default_context(cafile=access.ca or None)
        if access.cert:
            context.load_cert_chain(access.cert, access.key or None)
    except (OSError, ValueError) as error:
        raise BackendError(f"the certificates for etcd cannot be used: {error}") from None
    return context


def login(access: Access) -> dict[str, Any]:
    """Return the request for a token. Raises BackendError."""
    try:
        password = Path(access.password_file).read_text().rstrip("\n")
    except (OSError, ValueError) as error:
        raise BackendError(f"etcd's password cannot be read: {error}") from None
    return {"name": access.user, "password": password}


def parse_token(answer: dict[str, Any]) -> str:
    """Return the token in an answer; raise BackendError."""
    token = answer.get("token")
    if not isinstance(token, str) or not token.isprintable():
        raise BackendError("etcd answered with no token")
    return token


def ranged(store: ElectionStore) -> dict[str, Any]:
    """Return the request for the record; linearizable, so that etcd asks a quorum."""
    return {"key": _key(store)}


def txn(store: ElectionStore, record: Record, version: str) -> dict[str, Any]:
    """Return the transaction that replaces the record if it has this version."""
    name = _key(store)
    return {
        "compare": [
            {"key": name, "target": "MOD", "result": "EQUAL", "mod_revision": version or "0"}
        ],
        "success": [{"request_put": {"key": name, "value": _text(pack(record))}}],
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
    except (MoonpoolError, *_ODD) as error:
        raise BackendError(f"etcd answered a range oddly: {error}") from None


def parse_txn(answer: dict[str, Any]) -> Answer:
    """Return what a transaction did; raise BackendError."""
    try:
        if answer.get("succeeded") is True:
            return Written(str(int(answer["header"]["revision"])))
        found = answer["responses"][0]["response_range"]
    except _ODD as error:
        raise BackendError(f"etcd answered a transaction oddly: {error}") from None
    return parse_range(found)


def _key(store: ElectionStore) -> str:
    return _text(f"/moonpool/{store.name}/leader")


def _text(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
