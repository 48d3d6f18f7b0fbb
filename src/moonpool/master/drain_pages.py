"""``/drains`` on the master's HTTP side: which nodes are drained; beginning a drain, ending one.

GET lists them; POST ``/drains?node=NAME`` begins, DELETE ends. The latter two want the master's
token, if it has one, as ``Authorization: Bearer TOKEN``.
"""

from __future__ import annotations

import hmac
from typing import Final

from moonpool.core.messages import Drain, Failed
from moonpool.master.admin_answers import json_page
from moonpool.master.http import Asked, Page, Pages, Route
from moonpool.master.service import Service

DRAIN_PATHS: Final[dict[str, tuple[str, ...]]] = {"/drains": ("GET", "HEAD", "POST", "DELETE")}


def drain_pages(service: Service) -> Pages:
    """Return the pages by path."""

    def drains(asked: Asked) -> Page:
        if asked.method in ("GET", "HEAD"):
            return _listed(service)
        token = service.token
        if token and not hmac.compare_digest(asked.token.encode(errors="replace"), token):
            return json_page({"error": "the master's token is needed"}, 401)
        node = asked.query.get("node", "")
        reply = service.change(Drain(node, on=asked.method == "POST"))
        if isinstance(reply, Failed):
            return json_page({"error": reply.text}, 404)
        return _listed(service)

    return {path: Route(methods, drains) for path, methods in DRAIN_PATHS.items()}


def _listed(service: Service) -> Page:
    found = service.status().drains
    fields = [{name: getattr(each, name) for name in each.__struct_fields__} for each in found]
    return json_page({"drains": fields})
