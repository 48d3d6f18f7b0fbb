"""One blocking look into an election's store, for those who only want to know who leads."""

from __future__ import annotations

import http.client
import json
import ssl
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from moonpool.config_ha import ElectionStore
from moonpool.ha import etcd_wire, lease_wire
from moonpool.ha.backend import BackendError
from moonpool.ha.election import Record

_NO_PROXY = urllib.request.ProxyHandler({})
_firsts: dict[ElectionStore, int] = {}
_tokens: dict[ElectionStore, str] = {}


def look_in(store: ElectionStore, timeout_s: float) -> Record | None:
    """Return the record. Raises BackendError, ConfigError."""
    if store.kind == "kubernetes":
        return look_at_lease(store, lease_wire.base_url(), timeout_s)
    return _look_in_etcd(store, timeout_s)


def look_at_lease(
    store: ElectionStore, base: str, timeout_s: float, account: Path | None = None
) -> Record | None:
    """Return the record in a Lease."""
    account = account or lease_wire.account()
    url = f"{base}{lease_wire.leases_path(store)}/{store.name}"
    request = urllib.request.Request(url, headers=lease_wire.headers(account))
    context = lease_wire.trusted(account) if url.startswith("https:") else None
    raw = _asked(request, timeout_s, context)
    return None if raw is None else lease_wire.seen_in(lease_wire.parse(raw)).record


def _look_in_etcd(store: ElectionStore, timeout_s: float) -> Record | None:
    urls = etcd_wire.urls_of(store)
    deadline = time.monotonic() + timeout_s
    why = ""
    for turn in range(len(urls)):
        # A frozen endpoint must leave time for the others, and is not asked first again.
        number = (_firsts.get(store, 0) + turn) % len(urls)
        left_s = (deadline - time.monotonic()) / (len(urls) - turn)
        try:
            found = _ask_etcd(store, urls[number], max(left_s, 0.01))
        except BackendError as error:
            why = str(error)
            continue
        _firsts[store] = number
        return etcd_wire.parse_range(found).record
    raise BackendError(why)


def _ask_etcd(store: ElectionStore, url: str, timeout_s: float) -> dict[str, Any]:
    """Return what an endpoint answers, with a new token if it does not know the one we have."""
    access = store.access
    if not access.user:
        return _post_etcd(store, url + etcd_wire.RANGE, etcd_wire.ranged(store), timeout_s)
    for known in (store in _tokens, False):
        if not known:
            said = _post_etcd(store, url + etcd_wire.LOGIN, etcd_wire.login(access), timeout_s)
            _tokens[store] = etcd_wire.parse_token(said)
        try:
            return _post_etcd(store, url + etcd_wire.RANGE, etcd_wire.ranged(store), timeout_s)
        except BackendError:
            if not known:
                _tokens.pop(store, None)
                raise
    raise BackendError(f"{url}: not reached")


def _post_etcd(
    store: ElectionStore, url: str, body: dict[str, Any], timeout_s: float
) -> dict[str, Any]:
    token = _tokens.get(store, "") if store.access.user and etcd_wire.LOGIN not in url else ""
    headers = {"Authorization": token} if token else {}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    return etcd_wire.parse(_asked(request, timeout_s, etcd_wire.trusted(store.access)) or b"")


def _asked(
    request: urllib.request.Request, timeout_s: float, context: ssl.SSLContext | None
) -> bytes | None:
    """Return the answer; None for 404."""
    handlers: list[urllib.request.BaseHandler] = [_NO_PROXY]
    if context is not None:
        handlers.append(urllib.request.HTTPSHandler(context=context))
    try:
        opener = urllib.request.build_opener(*handlers)
        with opener.open(request, timeout=timeout_s) as response:
            found: bytes = response.read(etcd_wire.ANSWER_BYTES_MAX)
            return found
    except urllib.error.HTTPError as error:
        with error:
            if error.code == 404:
                return None
        raise BackendError(f"{request.full_url} answered {error.code}") from None
    except (OSError, http.client.HTTPException) as error:
        raise BackendError(f"{request.full_url}: {error}") from None
