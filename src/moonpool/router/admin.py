"""What operators see and change: state, metrics, instances."""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec
from aiohttp import web

from moonpool.errors import ConfigError
from moonpool.router import openapi
from moonpool.router.instance import DECODE, PREFILL, Instance
from moonpool.router.members import Named, named
from moonpool.router.openai import error_response

if TYPE_CHECKING:
    from moonpool.router.front import Front

BODY_BYTES_MAX = 65_536


class InstanceBody(msgspec.Struct):
    """``{"url": "http://HOST:PORT", "role": ...}``, or ``{"type": ..., "instance": "HOST:PORT"}``
    as other proxies take it."""

    url: str = ""
    instance: str = ""
    role: str = ""
    type: str = ""
    bootstrap: str | int = ""

    def address(self) -> str:
        """Return the base URL."""
        text = self.url or self.instance
        return text if "://" in text or not text else f"http://{text}"


_body = msgspec.json.Decoder(InstanceBody)


class Admin:
    """The routes that are the router's own."""

    def __init__(self, front: Front) -> None:
        self._front = front

    def register(self, app: web.Application) -> None:
        """Add the routes."""
        app.router.add_get("/health", self._health)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/status", self._status)
        app.router.add_get("/openapi.json", self._openapi)
        for verb in ("add", "drain", "remove"):
            app.router.add_post(f"/instances/{verb}", self._change)

    async def _health(self, request: web.Request) -> web.Response:
        now = self._front.forward.clock()
        instances = self._front.instances
        up = [each.is_up(now) for each in instances]
        body = {
            "status": "ok" if any(up) else "no instance is up",
            "instances": [
                {
                    "url": each.url,
                    "role": each.role,
                    "up": alive,
                    "in_flight": each.in_flight,
                }
                for each, alive in zip(instances, up, strict=True)
            ],
        }
        return _json(body, 200 if any(up) else 503)

    async def _metrics(self, request: web.Request) -> web.Response:
        front = self._front
        front.metrics.index_blocks.set(len(front.index))
        front.knowledge.report()
        return web.Response(body=front.metrics.text(), content_type="text/plain", charset="utf-8")

    async def _openapi(self, request: web.Request) -> web.Response:
        return _json(openapi.document())

    async def _status(self, request: web.Request) -> web.Response:
        return _json(self.status())

    def status(self) -> dict[str, Any]:
        """Return the router's state."""
        front = self._front
        now, admission = front.forward.clock(), front.admission
        return {
            "policy": front.policy_name,
            "in_flight": admission.in_flight,
            "waiting": admission.waiting,
            "capacity": admission.capacity(),
            "index_blocks": len(front.index),
            **front.knowledge.describe(),
            **self._split(),
            "instances": [self._describe(each, now) for each in front.instances],
        }

    def _split(self) -> dict[str, Any]:
        """Return the engines by role, in the form in which other proxies show them."""
        found: dict[str, Any] = {}
        for role in (PREFILL, DECODE):
            nodes = [urlsplit(e.url).netloc for e in self._front.instances if e.role == role]
            found |= {f"{role}_node_count": len(nodes), f"{role}_nodes": nodes}
        return found

    def _describe(self, each: Instance, now: float) -> dict[str, Any]:
        base, prefill, load = each.model.weights[:3]
        return {
            "url": each.url,
            "role": each.role,
            "bootstrap": each.bootstrap,
            "up": each.is_up(now),
            "state": "draining" if each.draining else "active",
            "healthy": each.healthy,
            "circuit": each.circuit.describe(now),
            "source": each.source,
            "in_flight": each.in_flight,
            "pending_tokens": each.pending_tokens,
            "index_blocks": self._front.index.held(each.mark),
            "models": list(each.facts.models),
            "block_tokens": each.facts.block_tokens,
            "kv_blocks": each.facts.blocks,
            "learned": {
                "samples": each.model.samples,
                "base_ms": round(base * 1000, 2),
                "prefill_tokens_per_s": round(1000 / prefill),
                "load_tokens_per_s": round(1000 / load),
            },
            "kv_events": self._front.events_of(each),
        }

    async def _change(self, request: web.Request) -> web.Response:
        refusal = self._not_allowed(request)
        if refusal is not None:
            return refusal
        try:
            body = _body.decode(await _read(request))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            return error_response(f"the body is not understood: {error}", 400)
        return self._carry_out(request.path.rpartition("/")[2], body)

    def _carry_out(self, verb: str, body: InstanceBody) -> web.Response:
        members, now, url = self._front.members, self._front.forward.clock(), body.address()
        try:
            if verb == "add":
                found: Instance | None = members.add(self._named(body), "admin")
            else:
                found = members.drain(url) if verb == "drain" else members.remove(url)
        except ConfigError as error:
            return error_response(str(error), 400)
        self._front.resize()
        if found is None:
            return error_response(f"{url or 'no url'}: no such instance", 404)
        return _json({"instance": self._describe(found, now), "instances": len(members.instances)})

    def _named(self, body: InstanceBody) -> Named:
        """Return what is to be added; what is not said stays as it is."""
        known = self._front.members.find(body.address())
        role, bootstrap = body.role or body.type, str(body.bootstrap)
        if known is not None:
            role, bootstrap = role or known.role, bootstrap or known.bootstrap
        return named(body.address(), role, bootstrap)

    def _not_allowed(self, request: web.Request) -> web.Response | None:
        key = self._front.options.admin_key
        if not key:
            return error_response(
                "instances cannot be changed: start the router with ADMIN_API_KEY", 403
            )
        bearer = request.headers.get("Authorization", "").removeprefix("Bearer ")
        given = request.headers.get("X-API-Key", bearer)
        if hmac.compare_digest(given.encode("utf-8", "replace"), key.encode()):
            return None
        return error_response(
            "the admin key is missing or wrong", 401, {"WWW-Authenticate": "Bearer"}
        )


async def _read(request: web.Request) -> bytes:
    body = b""
    async for part in request.content.iter_any():
        body += part
        if len(body) > BODY_BYTES_MAX:
            raise web.HTTPRequestEntityTooLarge(BODY_BYTES_MAX, len(body))
    return body


def _json(body: Any, status: int = 200) -> web.Response:
    return web.Response(
        body=msgspec.json.encode(body), status=status, content_type="application/json"
    )
