"""The forms of Mooncake's answers."""

from __future__ import annotations

import msgspec

from moonpool.core import codes
from moonpool.master.http import Page

NAMES = {
    codes.NOT_FOUND: "OBJECT_NOT_FOUND",
    codes.INVALID: "INVALID_PARAMS",
    codes.ILLEGAL_CLIENT: "ILLEGAL_CLIENT",
    -101: "SEGMENT_NOT_FOUND",
    -1010: "UNAVAILABLE_IN_CURRENT_STATUS",
    -1011: "UNAVAILABLE_IN_CURRENT_MODE",
    -1: "INTERNAL_ERROR",
    -1702: "TENANT_NOT_EMPTY",
    -1402: "JOB_NOT_FOUND",
}


def failure(code: int, text: str = "", status: int = 400) -> Page:
    """Return the answer to what cannot be done."""
    said = text or NAMES.get(code, "INTERNAL_ERROR")
    return json_page({"success": False, "error_code": code, "error_message": said}, status)


def json_page(body: object, status: int = 200) -> Page:
    """Return an answer in JSON."""
    return Page(msgspec.json.encode(body), "application/json; charset=utf-8", status)
