"""Which transfers an instance that sends has in use, and which one that receives has made."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

FETCHED_MAX = 16_384


class Transfers:
    """Which request each ``transfer_id`` belongs to.

    A peer keeps one record for each id: a second request of that id would leave the blocks of the
    first held for good. An id is free again two steps after its request, when the peer knows.
    """

    def __init__(self) -> None:
        """None is taken."""
        self._owners: dict[str, str] = {}
        self._taken: dict[str, str] = {}
        self._resting: tuple[list[str], list[str]] = ([], [])

    def take(self, transfer: str, request_id: str) -> bool:
        """Return whether the id was free; it is the request's then."""
        if transfer in self._owners:
            return False
        self._owners[transfer] = request_id
        self._taken[request_id] = transfer
        return True

    def give_back(self, request_id: str) -> None:
        """Free a request's id, if it has one."""
        transfer = self._taken.pop(request_id, None)
        if transfer is not None:
            self._resting[0].append(transfer)

    def new_step(self) -> None:
        """A step begins."""
        for transfer in self._resting[1]:
            del self._owners[transfer]
        self._resting = ([], self._resting[0])


class Fetched:
    """What was fetched from other instances: a second time there is something else in its place.

    A request for several answers (``n``) comes as several, all with the same parameters.
    """

    def __init__(self, limit: int = FETCHED_MAX) -> None:
        """Remember the newest ``limit``."""
        self._limit = limit
        self._seen: OrderedDict[tuple[str, str], None] = OrderedDict()

    def first(self, params: dict[str, Any]) -> bool:
        """Return whether these parameters have not been used before; they are now."""
        name = params.get("transfer_id") or params.get("remote_request_id")
        key = (str(params.get("remote_engine_id")), str(name))
        if key in self._seen:
            return False
        self._seen[key] = None
        if len(self._seen) > self._limit:
            self._seen.popitem(last=False)
        return True
