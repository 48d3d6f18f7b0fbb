"""Which instance keeps which stored response: engines know only their own."""

from __future__ import annotations

import re
from collections import OrderedDict

from moonpool.router.instance import Instance

RESPONSES_MAX = 65_536
_ID = re.compile(rb'"id"\s*:\s*"(resp_[\w.-]{1,200})"')


class Responses:
    """The latest response ids and their homes."""

    def __init__(self, most: int = RESPONSES_MAX) -> None:
        self._homes: OrderedDict[str, Instance] = OrderedDict()
        self._most = most

    def note(self, first_bytes: bytes, instance: Instance) -> None:
        """Take the beginning of an answer, which holds the response's id."""
        found = _ID.search(first_bytes[:65_536])
        if found is not None:
            self._homes[found[1].decode()] = instance
            if len(self._homes) > self._most:
                self._homes.popitem(last=False)

    def home(self, response_id: str) -> Instance | None:
        """Return the instance that made a response, if that is known."""
        return self._homes.get(response_id)
