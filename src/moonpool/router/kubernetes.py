"""Instances that are the ready endpoints of a Kubernetes service."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote

import aiohttp
import msgspec

from moonpool.errors import ConfigError
from moonpool.router.discovery import Apply
from moonpool.router.instance import BOTH, ROLES
from moonpool.router.members import Named, named

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
LABEL = "kubernetes.io/service-name"
# Kubernetes copies a service's own labels to its slices.
ROLE_LABEL = "moonpool.io/role"
BOOTSTRAP_PORT = "bootstrap"
TIMEOUT_S = 10.0
WATCH_S = 300
RETRY_S = 2.0
RETRY_MAX_S = 30.0
EVENT_BYTES_MAX = 4 << 20
SLICES_MAX = 1024

log = logging.getLogger("moonpool.router.kubernetes")


class ApiError(Exception):
    """The API server gave no usable answer."""


class SliceApi(Protocol):
    """What is needed of an API server."""

    async def list(self) -> tuple[list[dict[str, Any]], str]:
        """Return all EndpointSlices of the service, and the version to watch from."""

    def watch(self, version: str) -> AsyncIterator[dict[str, Any]]:
        """Yield watch events from a version on, for some minutes; raise ApiError."""


@dataclass(frozen=True, slots=True)
class Service:
    """A service, or several with commas between their names. port: a number or the name of a port,
    "" for the slice's first."""

    namespace: str
    name: str
    port: str = ""


def parse_service(text: str) -> Service:
    """Return the service of ``NAMESPACE/NAME[:PORT]``; raise ConfigError."""
    head, _, port = text.partition(":")
    namespace, slash, name = head.partition("/")
    parts = (namespace, *name.split(","), port or "x")
    plain = [part.replace("-", "").isalnum() for part in parts]
    if not slash or not all(plain):
        raise ConfigError(
            f"discovery: {text!r} names no service; allowed: "
            "kubernetes:NAMESPACE/SERVICE[,SERVICE...][:PORT]"
        )
    return Service(namespace, name, port)


def instances_of(slices: dict[str, dict[str, Any]], port: str) -> list[Named]:
    """Return all endpoints that are ready, in order, each once. The label ``moonpool.io/role`` of
    their service says what they do, a port called ``bootstrap`` where their KV transfer is met."""
    found: dict[str, Named] = {}
    for each in slices.values():
        number = _port(each.get("ports"), port)
        endpoints = each.get("endpoints")
        if number is None or not isinstance(endpoints, list):
            continue
        role, bootstrap = _role(each), _port(each.get("ports"), BOOTSTRAP_PORT)
        for address in [address for one in endpoints for address in _addresses(one)]:
            with contextlib.suppress(ConfigError):
                one = named(_url(address, number), role, str(bootstrap or ""))
                found[one.url] = one
    return [found[url] for url in sorted(found)]


def _role(each: dict[str, Any]) -> str:
    metadata = each.get("metadata")
    labels = metadata.get("labels") if isinstance(metadata, dict) else None
    role = labels.get(ROLE_LABEL) if isinstance(labels, dict) else None
    return role if role in ROLES else BOTH


def _addresses(endpoint: Any) -> list[str]:
    if not isinstance(endpoint, dict):
        return []
    conditions = endpoint.get("conditions") or {}
    # Not said means ready, as in the API's own description.
    ready = not isinstance(conditions, dict) or conditions.get("ready") in (True, None)
    addresses = endpoint.get("addresses")
    if not ready or not isinstance(addresses, list):
        return []
    return [each for each in addresses if isinstance(each, str)]


def _url(address: str, port: int) -> str:
    return f"http://[{address}]:{port}" if ":" in address else f"http://{address}:{port}"


def _port(ports: Any, wanted: str) -> int | None:
    for each in ports if isinstance(ports, list) else ():
        number = each.get("port") if isinstance(each, dict) else None
        if type(number) is int and wanted in ("", str(number), each.get("name")):
            return number
    return int(wanted) if wanted.isdecimal() and len(wanted) < 6 else None


class KubernetesSource:
    """Lists the service's EndpointSlices, then watches them; lists again when a watch fails.

    An API server that does not answer changes nothing: the instances stay.
    """

    name = "kubernetes"

    def __init__(self, api: SliceApi, port: str = "", retry_s: float = RETRY_S) -> None:
        self._api, self._port, self._retry_s = api, port, retry_s

    async def run(self, apply: Apply) -> None:
        """See discovery.Source."""
        pause = self._retry_s
        while True:
            try:
                await self._follow(apply)
                pause = self._retry_s
            except ApiError as error:
                log.warning("endpoints: %s; the instances stay as they are", error)
                await asyncio.sleep(pause)
                pause = min(2 * pause, RETRY_MAX_S)

    async def _follow(self, apply: Apply) -> None:
        listed, version = await self._api.list()
        slices = {_name(each): each for each in listed[:SLICES_MAX]}
        applied = instances_of(slices, self._port)
        apply(applied)
        async for event in self._api.watch(version):
            each = event.get("object")
            if event.get("type") == "ERROR" or not isinstance(each, dict):
                raise ApiError(f"the watch ended: {str(each)[:200]}")
            if event.get("type") == "DELETED":
                slices.pop(_name(each), None)
            elif event.get("type") in ("ADDED", "MODIFIED") and len(slices) <= SLICES_MAX:
                slices[_name(each)] = each
            found = instances_of(slices, self._port)
            if found != applied:
                applied = found
                apply(found)


def _name(each: dict[str, Any]) -> str:
    metadata = each.get("metadata")
    return str(metadata.get("name")) if isinstance(metadata, dict) else ""


class HttpSliceApi:
    """The API server over HTTP, with the pod's own account unless told otherwise.

    token: read before each call, since Kubernetes changes it; b"" for none.
    """

    def __init__(self, base: str, service: Service, account: Path = ACCOUNT) -> None:
        several = "," in service.name
        text = f"{LABEL} in ({service.name})" if several else f"{LABEL}={service.name}"
        selector = quote(text, safe="")
        self._url = (
            f"{base}/apis/discovery.k8s.io/v1/namespaces/{service.namespace}"
            f"/endpointslices?labelSelector={selector}"
        )
        self._account = account

    @classmethod
    def in_cluster(cls, service: Service) -> HttpSliceApi:
        """Return the API of the cluster that this process runs in; raise ConfigError."""
        host = os.environ.get("KUBERNETES_SERVICE_HOST")
        port = os.environ.get("KUBERNETES_SERVICE_PORT", "443")
        if not host:
            raise ConfigError("discovery: kubernetes works inside of a cluster only")
        return cls(f"https://{f'[{host}]' if ':' in host else host}:{port}", service)

    async def list(self) -> tuple[list[dict[str, Any]], str]:
        """See SliceApi."""
        async with self._session() as http:
            try:
                timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
                async with http.get(self._url, timeout=timeout) as response:
                    answer = await self._checked(response)
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                raise ApiError(f"{type(error).__name__}: {error}") from None
        items, metadata = answer.get("items"), answer.get("metadata")
        if not isinstance(items, list) or not isinstance(metadata, dict):
            raise ApiError("an answer without items")
        version = str(metadata.get("resourceVersion", ""))
        return [each for each in items if isinstance(each, dict)], version

    async def watch(self, version: str) -> AsyncIterator[dict[str, Any]]:
        """See SliceApi."""
        url = f"{self._url}&watch=1&timeoutSeconds={WATCH_S}&resourceVersion={quote(version)}"
        async with self._session() as http:
            try:
                timeout = aiohttp.ClientTimeout(total=None, sock_read=WATCH_S + TIMEOUT_S)
                async with http.get(url, timeout=timeout) as response:
                    if response.status != 200:
                        raise ApiError(f"HTTP {response.status}")
                    async for line in _lines(response):
                        yield _object(line)
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                raise ApiError(f"{type(error).__name__}: {error}") from None

    def _session(self) -> aiohttp.ClientSession:
        token, authority = self._account / "token", self._account / "ca.crt"
        headers = {}
        if token.is_file():
            headers["Authorization"] = f"Bearer {token.read_text().strip()}"
        context = ssl.create_default_context(cafile=str(authority) if authority.is_file() else None)
        connector = aiohttp.TCPConnector(ssl=context, limit=1)
        return aiohttp.ClientSession(headers=headers, connector=connector)

    async def _checked(self, response: aiohttp.ClientResponse) -> dict[str, Any]:
        if response.status != 200:
            raise ApiError(f"HTTP {response.status}")
        return _object(await response.read())


async def _lines(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    left = b""
    async for part in response.content.iter_any():
        *lines, left = (left + part).split(b"\n")
        for line in lines:
            if line.strip():
                yield line
        if len(left) > EVENT_BYTES_MAX:
            raise ApiError("an event that is too large")


def _object(text: bytes) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ApiError(f"no JSON: {error}") from None
    if not isinstance(found, dict):
        raise ApiError("no JSON object")
    return found
