"""Each conversation to one instance, by a hash that moves few of them when instances change."""

from __future__ import annotations

from collections.abc import Sequence

import xxhash

from moonpool.router.instance import Instance, Plan
from moonpool.router.prompt import RoutedRequest


class SessionHash:
    """Rendezvous hashing: the instance whose hash with the session is the highest.

    When an instance leaves, only its own conversations move; when one joins, it takes its share
    and no conversation moves between the others.
    """

    needs_prompt = False
    needs_pool = False
    needs_session = True

    def __init__(self) -> None:
        self._turn = 0

    def choose(self, request: RoutedRequest, candidates: Sequence[Instance]) -> Plan:
        """Return the session's candidate; requests without any session go in turn."""
        if not request.session:
            self._turn += 1
            return Plan(candidates[self._turn % len(candidates)])
        seed = xxhash.xxh3_64_intdigest(request.session.encode("utf-8", "surrogatepass"))
        return Plan(max(candidates, key=lambda each: _rank(each.url, seed)))

    def sent(self, request: RoutedRequest, plan: Plan) -> None:
        """Note nothing."""


def _rank(url: str, seed: int) -> int:
    return xxhash.xxh3_64_intdigest(url.encode(), seed)
