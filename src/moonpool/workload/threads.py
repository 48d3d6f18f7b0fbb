"""Which conversation a request belongs to."""

from __future__ import annotations

from collections import OrderedDict

from moonpool.workload.request import Request

ENDS_MAX = 1 << 21


class Threads:
    """Names the conversations of requests that come in order of time.

    Where the trace does not: a request continues the one whose last prompt it repeats up to that
    prompt's last full block. The oldest ends are forgotten beyond ENDS_MAX.
    """

    def __init__(self, block_tokens: int) -> None:
        self._block_tokens = block_tokens
        self._ends: OrderedDict[int, str] = OrderedDict()
        self._count = 0

    def name_of(self, request: Request) -> str:
        """Return the name of the request's conversation."""
        if request.session:
            return request.session
        full: list[int] = request.blocks[: request.input_tokens // self._block_tokens].tolist()
        known = (self._ends.pop(block) for block in reversed(full) if block in self._ends)
        name = next(known, None)
        if name is None:
            name = str(self._count)
            self._count += 1
        if full:
            self._ends[full[-1]] = name
            if len(self._ends) > ENDS_MAX:
                self._ends.popitem(last=False)
        return name
