"""The router's API, described for tools. Fields that only engines read are not repeated here."""

from __future__ import annotations

from functools import cache
from typing import Any

import moonpool
from moonpool.router.instance import ROLES

Schema = dict[str, Any]
FIELDS: dict[str, tuple[str, ...]] = {
    "/v1/chat/completions": ("messages",),
    "/v1/completions": ("prompt",),
    "/v1/embeddings": ("input",),
    "/v1/messages": ("messages",),
    "/v1/messages/count_tokens": ("messages",),
    "/v1/rerank": ("query", "documents"),
    "/v1/responses": ("input",),
    "/v1/score": (),
    "/detokenize": ("tokens",),
    "/tokenize": (),
}
ENGINE_ERRORS = (400, 401, 404, 408, 413, 415, 422, 429, 500, 501, 502, 503, 504)
ADMIN_ERRORS = (400, 401, 403, 404, 413)
_ERROR: Schema = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {},
                "code": {"type": "integer"},
            },
        }
    },
}
_INSTANCE: Schema = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "url": {"type": "string", "examples": ["http://10.0.0.7:8000"]},
        "instance": {"type": "string", "examples": ["10.0.0.7:8000"]},
        "role": {"$ref": "#/components/schemas/Role"},
        "type": {"$ref": "#/components/schemas/Role"},
        "bootstrap": {
            "description": "A port on the instance's host, or a base URL",
            "type": ["string", "integer"],
            "examples": [8998],
        },
    },
}
_ROLE: Schema = {
    "description": "What the instance does; empty: both, or as before where it is known",
    "type": "string",
    "enum": ["", *ROLES, "kv_producer", "kv_consumer", "kv_both"],
}


@cache
def document() -> Schema:
    """Return the OpenAPI document."""
    paths: dict[str, Schema] = {path: _proxied(path, names) for path, names in FIELDS.items()}
    paths["/v1/models"] = {"get": _operation("List the models", ENGINE_ERRORS)}
    paths["/v1/models/{model}"] = {
        "get": _operation("Show a model", ENGINE_ERRORS, [_in_path("model")])
    }
    paths["/v1/responses/{id}"] = {
        "get": _operation("Show a stored response", ENGINE_ERRORS, [_in_path("id")])
    }
    paths["/v1/responses/{id}/cancel"] = {
        "post": _operation("Cancel a response", ENGINE_ERRORS, [_in_path("id")])
    }
    paths["/health"] = {"get": _operation("Whether any instance is up", (503,), errors=False)}
    paths["/status"] = {"get": _operation("The router's state", ())}
    paths["/openapi.json"] = {"get": _operation("This document", ())}
    metrics = {"200": {"description": "Prometheus' text", "content": {"text/plain": {}}}}
    paths["/metrics"] = {"get": {"summary": "Counters", "responses": metrics}}
    for verb in ("add", "drain", "remove"):
        paths[f"/instances/{verb}"] = {"post": _admin(verb)}
    return {
        "openapi": "3.1.0",
        "info": {"title": "moonpool router", "version": moonpool.__version__},
        "paths": paths,
        "components": {
            "schemas": {"Error": _ERROR, "Instance": _INSTANCE, "Role": _ROLE},
            "securitySchemes": {"admin": {"type": "http", "scheme": "bearer"}},
        },
    }


def _proxied(path: str, names: tuple[str, ...]) -> Schema:
    schema = {
        "type": "object",
        "properties": {
            "model": {"type": "string"},
            "stream": {"type": "boolean"},
            "max_tokens": {"type": "integer", "minimum": 0},
            **{name: {} for name in names},
        },
        "required": list(names),
    }
    operation = _operation(f"Passed to an instance: {path}", ENGINE_ERRORS, [_PRIORITY])
    operation["requestBody"] = {
        "required": True,
        "content": {"application/json": {"schema": schema}},
    }
    operation["responses"]["200"]["content"]["text/event-stream"] = {}
    return {"post": operation}


def _admin(verb: str) -> Schema:
    operation = _operation(f"Let an instance {verb}", ADMIN_ERRORS)
    operation["security"] = [{"admin": []}]
    operation["requestBody"] = {
        "required": True,
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Instance"}}},
    }
    return operation


_PRIORITY: Schema = {
    "name": "X-Moonpool-Priority",
    "in": "header",
    "description": "Lower is served earlier while requests wait",
    "schema": {"type": "integer", "minimum": -100, "maximum": 100},
}


def _in_path(name: str) -> Schema:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}


def _operation(
    summary: str,
    statuses: tuple[int, ...],
    parameters: list[Schema] | None = None,
    *,
    errors: bool = True,
) -> Schema:
    good = {"description": "The answer", "content": {"application/json": {}}}
    schema = {"schema": {"$ref": "#/components/schemas/Error"}} if errors else {}
    bad = {"description": "An error", "content": {"application/json": schema}}
    return {
        "summary": summary,
        "parameters": parameters or [],
        "responses": {"200": good, **{str(status): bad for status in statuses}},
    }
