"""The forms of ``mc_store_rest_server``'s answers."""

from __future__ import annotations

import json
from typing import Any

from aiohttp import web


async def body_of(request: web.Request) -> dict[str, Any]:
    """Return a request's JSON object; an empty one for anything else."""
    try:
        found = await request.json()
    except (json.JSONDecodeError, UnicodeDecodeError):
        return {}
    return found if isinstance(found, dict) else {}


def done() -> web.Response:
    """Return that all is well."""
    return web.json_response({"status": "success"})


def error(status: int, text: str) -> web.Response:
    """Return what went wrong."""
    return web.json_response({"error": text}, status=status)
