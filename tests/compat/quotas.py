"""The page of tenants' quotas."""

from __future__ import annotations

import json
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

HEAD = {"Content-Type": "application/json"}
Answer = tuple[int, Any]


class Quotas:
    """The page of quotas."""

    def __init__(self, admin: str) -> None:
        self._url = f"{admin}/api/v1/tenant_quotas"

    def ask(self, query: str = "", method: str = "GET", **body: Any) -> Answer:
        raw = json.dumps(body).encode() if method == "PUT" else None
        try:
            with urlopen(Request(self._url + query, raw, HEAD, method=method), timeout=30) as reply:
                return reply.status, json.loads(reply.read())["data"]
        except HTTPError as error:
            return error.code, json.loads(error.read())["error_code"]

    def put(self, name: str, nbytes: Any) -> Answer:
        return self.ask(f"?tenant_id={name}", "PUT", requested_quota_bytes=nbytes)

    def of(self, name: str) -> Answer:
        return self.ask(f"?tenant_id={name}")

    def delete(self, name: str) -> Answer:
        return self.ask(f"?tenant_id={name}", "DELETE")
