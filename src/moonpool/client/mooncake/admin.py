"""What only the HTTP side of ``mooncake_master`` knows: which keys there are, how full it is."""

from __future__ import annotations

import json
import re
import urllib.request
from typing import Any

from moonpool.errors import MasterUnreachableError

ANSWER_BYTES_MAX = 1 << 28
_SAMPLE = re.compile(r"^([a-z_]+) ([0-9.e+]+)$", re.MULTILINE)


class Admin:
    """Asks the admin pages at ``host:port``. Every method raises MasterUnreachableError."""

    def __init__(self, address: str, timeout_s: float) -> None:
        self.address = address
        self._timeout_s = timeout_s

    def names(self) -> list[str]:
        """Return the names of all objects."""
        return [line for line in self._page("/get_all_keys").split("\n") if line]

    def segments(self) -> list[dict[str, Any]]:
        """Return the segments: name, size, used, endpoint and status."""
        try:
            found = json.loads(self._page("/get_segments_detail"))["segments"]
            return [each for each in found if isinstance(each, dict)]
        except (ValueError, KeyError, TypeError) as error:
            raise MasterUnreachableError(f"{self.address} is no mooncake_master: {error}") from None

    def metrics(self) -> dict[str, float]:
        """Return the metrics that have no labels."""
        return {name: float(value) for name, value in _SAMPLE.findall(self._page("/metrics"))}

    def _page(self, path: str) -> str:
        try:
            with urllib.request.urlopen(
                f"http://{self.address}{path}", timeout=self._timeout_s
            ) as r:
                body: bytes = r.read(ANSWER_BYTES_MAX)
        except OSError as error:
            raise MasterUnreachableError(
                f"the admin side of mooncake_master at {self.address}: {error}"
            ) from None
        return body.decode("utf-8", "replace")
