"""The API's forms: errors as vLLM gives them, and the fields of a request that matter here."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from http import HTTPStatus
from typing import Any

import msgspec
from aiohttp import web

from moonpool.core.messages import SESSION_CHARS_MAX

PRIORITY_HEADER = "X-Moonpool-Priority"
# What routers set themselves when work is split: from a client it is an attack on engines, some of
# which end with an assertion. vLLM takes them from its extra arguments too.
PRIVATE_FIELDS = ("kv_transfer_params", "ec_transfer_params")
EXTRA_ARGUMENTS = "vllm_xargs"
SESSION_FIELD = "kv_transfer_params"

_raw_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])
_any_value = msgspec.json.Decoder()


class BadRequest(Exception):
    """A request that no instance needs to see; its text is for the client."""


def error_body(message: str, status: int) -> dict[str, object]:
    """Return an error as vLLM gives it."""
    phrase = HTTPStatus(status).phrase
    return {"error": {"message": message, "type": phrase, "param": None, "code": status}}


def error_response(
    message: str, status: int, headers: Mapping[str, str] | None = None
) -> web.Response:
    """Return an HTTP answer that carries ``error_body``."""
    body = msgspec.json.encode(error_body(message, status))
    return web.Response(body=body, status=status, headers=headers, content_type="application/json")


class Fields:
    """The top fields of a JSON object; their values are decoded when asked for.

    Raises BadRequest for what is no JSON object.
    """

    def __init__(self, body: bytes) -> None:
        try:
            self._raw = _raw_fields.decode(body)
        except msgspec.ValidationError:
            raise BadRequest("the body must be a JSON object") from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise BadRequest(f"the body is not valid JSON: {error}") from None

    def raw(self, name: str) -> bytes:
        """Return a field's JSON, b"" where it is missing or null."""
        found = self._raw.get(name)
        text = b"" if found is None else bytes(found).strip()
        return b"" if text == b"null" else text

    def get(self, name: str) -> Any:
        """Return a field's value, None where it is missing. Raises BadRequest."""
        text = self.raw(name)
        try:
            return _any_value.decode(text) if text else None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise BadRequest(f"{name} is not valid JSON: {error}") from None

    def text(self, name: str) -> str:
        """Return a field that is text, "" for anything else."""
        value = self.get(name)
        return value if isinstance(value, str) else ""

    def is_true(self, name: str) -> bool:
        """Return whether a field is what a lenient server takes for true."""
        return self.raw(name).lower() in (b"true", b"1", b'"true"', b'"1"', b'"yes"', b'"on"')

    def changed(self, dropped: Collection[str], more: Mapping[str, Any]) -> bytes:
        """Return the object without some fields, and with others set."""
        kept = {name: raw for name, raw in self._raw.items() if name not in dropped}
        return msgspec.json.encode({**kept, **more})

    def _session(self) -> dict[str, Any] | None:
        try:
            return _session_of(self.get(SESSION_FIELD))
        except BadRequest:
            return None

    def without_private(self, body: bytes) -> bytes:
        """Return the body without the fields that only routers may set, but for what a client may
        say of its session there. Raises BadRequest."""
        found = [name for name in PRIVATE_FIELDS if name in self._raw]
        session = self._session() if SESSION_FIELD in found else None
        for name in found:
            del self._raw[name]
        if session is not None:
            self._raw[SESSION_FIELD] = msgspec.Raw(msgspec.json.encode(session))
        extra = self.get(EXTRA_ARGUMENTS)
        if isinstance(extra, dict) and any(name in extra for name in PRIVATE_FIELDS):
            kept = {name: value for name, value in extra.items() if name not in PRIVATE_FIELDS}
            self._raw[EXTRA_ARGUMENTS] = msgspec.Raw(msgspec.json.encode(kept))
        elif not found:
            return body
        return msgspec.json.encode(self._raw)


def _session_of(value: Any) -> dict[str, Any] | None:
    """Return what a client says of its session (docs/vllm.md), and nothing else of it."""
    said = value.get("moonpool") if isinstance(value, dict) else None
    session = said.get("session") if isinstance(said, dict) else None
    if not isinstance(said, dict) or not isinstance(session, str):
        return None
    if not 0 < len(session) <= SESSION_CHARS_MAX:
        return None
    kept: dict[str, Any] = {"session": session}
    if said.get("end_session") is True:
        kept["end_session"] = True
    return {"moonpool": kept}


def priority_of(headers: Mapping[str, str], most: int) -> int:
    """Return the request's priority, 0 where none is given; raise BadRequest."""
    text = headers.get(PRIORITY_HEADER)
    if text is None:
        return 0
    try:
        value = int(text)
    except ValueError:
        value = most + 1
    if abs(value) > most:
        raise BadRequest(f"{PRIORITY_HEADER}: a whole number from {-most} to {most} is allowed")
    return value
