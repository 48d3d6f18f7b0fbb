"""Objects on their way from a disk into memory: asked for again until they are there."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np

from moonpool.client.answers import as_many, expect
from moonpool.client.channel import Channel
from moonpool.core.messages import Get, Got, Located
from moonpool.errors import DeadlineError, NoSpaceError, NotReadyError
from moonpool.transport.base import I64

WAIT_S = 5.0
"""How long a read waits for a disk if its caller does not say."""
PAUSE_S_MAX = 0.02
DIRECT_AFTER_S = 0.1
"""After so long what memory has no room for is read straight from the disk."""
_CODES = NotReadyError.code, NoSpaceError.code


def is_any_coming(codes: I64, found: Sequence[Located]) -> bool:
    """Tell whether any of the objects is worth asking for again."""
    suspects = np.flatnonzero((codes == _CODES[0]) | (codes == _CODES[1]))
    return any(found[i].retry_after_s > 0 for i in suspects.tolist())


def wait_for(
    channel: Channel,
    request: Get,
    found: Sequence[Located],
    epoch: int,
    timeout_s: float | None,
    *,
    direct: Callable[[str], bool] = lambda _address: False,
) -> tuple[list[Located], int, float]:
    """Ask again for what is on its way until it is there or the time is over. ``direct`` tells
    whether a node's disk can be read; then that is not waited for any longer than DIRECT_AFTER_S.

    Return all locations, the epoch they hold in, and when their lease ends at the earliest; the
    leases of ``request`` are prolonged on the way. Raises MasterUnreachableError.
    """
    began = time.monotonic()
    deadline = began + (WAIT_S if timeout_s is None else timeout_s)
    places, pause_s = list(found), 0.0
    until = time.monotonic() + request.lease_s

    def waits(where: Located) -> bool:
        patient = not where.disk or time.monotonic() - began < DIRECT_AFTER_S
        return where.retry_after_s > 0 and (patient or not direct(where.disk))

    while coming := [i for i, where in enumerate(places) if waits(where)]:
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            break
        pause_s = max(pause_s * 1.5, max(places[i].retry_after_s for i in coming))
        time.sleep(min(pause_s, PAUSE_S_MAX, left_s))
        before, until = until, time.monotonic() + request.lease_s
        keys = [request.keys[i] for i in coming]
        try:
            answer, now = channel.ask(Get(keys, request.lease, request.lease_s), left_s)
            if now != epoch:
                # Another master: no place that the last one named holds any more.
                coming, epoch = list(range(len(places))), now
                places = [Located(where.size, code=_CODES[0]) for where in places]
                again = Get(request.keys, request.lease, request.lease_s)
                answer, now = channel.ask(again, left_s)
                if now != epoch:
                    break
        except DeadlineError:
            # The time is over; nothing is known to be leased for longer than before.
            return places, epoch, before
        for i, where in zip(coming, as_many(expect(Got, answer).objects, len(coming)), strict=True):
            places[i] = where
    return places, epoch, until
