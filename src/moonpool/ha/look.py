"""One blocking look into an election's store, for those who only want to know who leads."""

from __future__ import annotations

import http.client
import json
import ssl
import time
import urllib.error
import urllib.request
from pathlib import Path

from moonpool.config_ha import ElectionStore
from moonpool.ha import etcd_wire, lease_wire
from moonpool.ha.backend import BackendError
from moonpool.ha.election import Record

_NO_PROXY = urllib.request.ProxyHandler({})
_firsts: dict[ElectionStore, int] = {}


def look_in(store: ElectionStore, timeout_s: float) -> Record | None:
    """Return the record. Raises BackendError, ConfigError."""
    if store.kind == "kubernetes":
        return look_at_lease(store, lease_wire.base_url(), timeout_s)
    return _look_in_etcd(store, timeout_s)


def look_at_lease(
    store: ElectionStore, base: str, timeout_s: float, account: Path = lease_wire.ACCOUNT
) -> Record | None:
    """Return the record in a Lease."""
    url = f"{base}{lease_wire.leases_path(store)}/{store.name}"
    request = urllib.request.Request(url, headers=lease_wire.headers(account))
    context = lease_wire.trusted(account) if url.startswith("https:") else None
    raw = _asked(request, timeout_s, context)
    return None if raw is None else lease_wire.seen_in(lease_wire.parse(raw)).record


def _look_in_etcd(store: ElectionStore, timeout_s: float) -> Record | None:
    urls = etcd_wire.urls_of(store)
    deadline = time.monotonic() + timeout_s
    body = json.dumps(etcd_wire.ranged(store)).encode()
    why = ""
    for turn in range(len(urls)):
        # A frozen endpoint must leave time for the others, and is not asked first again.
        number = (_firsts.get(store, 0) + turn) % len(urls)
        left_s = (deadline - time.monotonic()) / (len(urls) - turn)
        try:
            request = urllib.request.Request(urls[number] + etcd_wire.RANGE, body)
            raw = _asked(request, max(left_s, 0.01), None)
        except BackendError as error:
            why = str(error)
            continue
        _firsts[store] = number
        return etcd_wire.parse_range(etcd_wire.parse(raw or b"")).record
    raise BackendError(why)


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
