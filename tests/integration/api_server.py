"""A Kubernetes API server that keeps the rules of Leases, for tests."""

from __future__ import annotations

import asyncio
import contextlib
import re
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from aiohttp import web

from tests.integration.certificates import Authority

MICRO_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")


class ApiServer:
    """Leases of coordination.k8s.io/v1: optimistic locking by resourceVersion, and validation."""

    def __init__(self, token: str) -> None:
        self.token = token
        self.leases: dict[tuple[str, str], dict[str, Any]] = {}
        self.version = 100
        self.port = 0

    async def serve(self, trusted: ssl.SSLContext | None = None) -> web.AppRunner:
        """Start; the caller cleans the runner up. trusted: with TLS, and this certificate."""
        app = web.Application()
        base = "/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        app.router.add_post(base, self._create)
        app.router.add_get(base + "/{name}", self._get)
        app.router.add_put(base + "/{name}", self._update)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", self.port, ssl_context=trusted)
        await site.start()
        self.port = runner.addresses[0][1]
        return runner

    def _refusal(self, code: int, reason: str, text: str = "") -> web.Response:
        body = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason}
        return web.json_response(body | {"code": code, "message": text}, status=code)

    def _where(self, request: web.Request) -> tuple[str, str]:
        return request.match_info["namespace"], request.match_info["name"]

    def _is_known(self, request: web.Request) -> bool:
        return request.headers.get("Authorization") == f"Bearer {self.token}"

    async def _get(self, request: web.Request) -> web.Response:
        if not self._is_known(request):
            return self._refusal(401, "Unauthorized")
        found = self.leases.get(self._where(request))
        return self._refusal(404, "NotFound") if found is None else web.json_response(found)

    async def _create(self, request: web.Request) -> web.Response:
        if not self._is_known(request):
            return self._refusal(401, "Unauthorized")
        lease = await request.json()
        if lease["metadata"].get("resourceVersion"):
            return self._refusal(400, "BadRequest", "resourceVersion should not be set")
        where = request.match_info["namespace"], lease["metadata"]["name"]
        if where in self.leases:
            return self._refusal(409, "AlreadyExists")
        wrong = self._wrong(lease)
        return self._refusal(422, "Invalid", wrong) if wrong else self._stored(where, lease, 201)

    async def _update(self, request: web.Request) -> web.Response:
        if not self._is_known(request):
            return self._refusal(401, "Unauthorized")
        lease, where = await request.json(), self._where(request)
        found = self.leases.get(where)
        if found is None:
            return self._refusal(404, "NotFound")
        version = lease["metadata"].get("resourceVersion")
        if version and version != found["metadata"]["resourceVersion"]:
            return self._refusal(409, "Conflict", "the object has been modified")
        wrong = self._wrong(lease)
        return self._refusal(422, "Invalid", wrong) if wrong else self._stored(where, lease, 200)

    def _wrong(self, lease: dict[str, Any]) -> str:
        spec = lease["spec"]
        if type(spec.get("leaseDurationSeconds")) is not int or spec["leaseDurationSeconds"] <= 0:
            return "leaseDurationSeconds: must be greater than 0"
        if not all(MICRO_TIME.fullmatch(spec[key]) for key in ("acquireTime", "renewTime")):
            return "not a MicroTime"
        notes = lease["metadata"].get("annotations", {})
        if not all(isinstance(value, str) for value in notes.values()):
            return "annotations are texts"
        return "" if lease["apiVersion"] == "coordination.k8s.io/v1" else "apiVersion"

    def _stored(self, where: tuple[str, str], lease: Any, status: int) -> web.Response:
        self.version += 1
        lease["metadata"]["resourceVersion"] = str(self.version)
        self.leases[where] = lease
        return web.json_response(lease, status=status)


async def _ended(runner: web.AppRunner) -> None:
    await runner.cleanup()
    # Connections with TLS take some more turns of the loop until their sockets are closed.
    await asyncio.sleep(0.25)


class Cluster:
    """An API server with TLS in a thread of its own, and the folder of an account that it knows."""

    def __init__(self, folder: Path) -> None:
        authority = Authority(folder)
        (folder / "ca.crt").write_bytes(authority.ca.read_bytes())
        (folder / "token").write_text("secret\n")
        self.account = folder
        self.server = ApiServer("secret")
        self._trusted = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._trusted.load_cert_chain(*authority.issue("api"))

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Serve for the length of the block; it keeps its port and its leases."""
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever, daemon=True)
        thread.start()
        try:
            serving = asyncio.run_coroutine_threadsafe(self.server.serve(self._trusted), loop)
            runner = serving.result(30)
            try:
                yield
            finally:
                asyncio.run_coroutine_threadsafe(_ended(runner), loop).result(30)
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join(30)
            loop.close()

    def lease(self, namespace: str, name: str) -> Any:
        """Return a Lease as it is now."""
        return self.server.leases[namespace, name]
