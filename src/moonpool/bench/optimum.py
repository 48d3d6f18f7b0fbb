"""The best that any policy can do: Belady's, which knows the future.

Of all objects of the same size, what is needed again last is evicted, or not taken in if that is
the new one. No policy has more hits, whether it may evict inner blocks or not. And none of its
hits lies behind a gap: whoever needs an object needs all before it, and needs them first, so what
it would evict is never in front of something it keeps. So it is a bound that can be reached, not
only one that cannot be passed.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush

import numpy as np
import numpy.typing as npt


def optimum(requests: Sequence[Sequence[int]], objects: int, capacity: int) -> list[int]:
    """Return how many leading objects of each request are there.

    requests: numbers below ``objects``, each at most once in a request, front first.
    """
    flat = np.fromiter((each for request in requests for each in request), np.int64)
    again = _again(flat, objects).tolist()
    owners = flat.tolist()
    never = len(owners)
    there = bytearray(objects)
    free = capacity
    latest: list[int] = []  # when residents are needed again, negated; smaller ones are past
    hits: list[int] = []
    at = 0
    for request in requests:
        found = leading = 0
        for place, each in enumerate(request):
            following = again[at]
            at += 1
            if there[each]:
                found += 1
                leading += found == place + 1
                if following == never:
                    there[each] = 0
                    free += 1
                else:
                    heappush(latest, -following)
            elif following < never:
                if free:
                    free -= 1
                elif latest and -latest[0] > following:
                    there[owners[-heappop(latest)]] = 0
                else:
                    continue
                there[each] = 1
                heappush(latest, -following)
        assert found == leading, "a hit behind a gap"
        hits.append(leading)
    return hits


def _again(flat: npt.NDArray[np.int64], objects: int) -> npt.NDArray[np.int64]:
    """Return for each use when the same object is used again; ``len(flat)`` if it is not."""
    again = np.full(len(flat), len(flat), np.int64)
    order = np.argsort(flat, kind="stable")
    same = np.flatnonzero(flat[order][:-1] == flat[order][1:])
    again[order[same]] = order[same + 1]
    return again
