"""Each request where its first token is expected soonest."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

from moonpool.router.index import PrefixIndex
from moonpool.router.instance import Instance, Plan
from moonpool.router.latency import Work
from moonpool.router.prompt import RoutedRequest
from moonpool.router.room import Room

# Predictions this close are taken for equal: the emptier instance gets the request.
EQUAL_SHARE = 0.05
EQUAL_S = 0.001
# Of a longer prompt only so many blocks are noted: it must not hold up the others.
KEYS_MAX = 16_384
# Seconds of computing weigh so much beside the request's own wait: others wait for them later.
OTHERS = 4.0
# So do seconds of computing again what is forgotten to make room, where it is wanted again.
KEEP = 4.0
# The time after which a prompt is continued: a guess, and how fast it is corrected.
REUSE_S = 60.0
FOLLOW = 0.02


class PrefixPolicy:
    """Predicts the time to first token on every candidate, and what the choice costs others.

    The prediction adds what waits before the request, what must be loaded from the pool and what
    must be computed, each at the rates learned. What is computed keeps the instance from others,
    and what it forgets to make room has to be computed again if it is wanted. A warm instance that
    is loaded loses to a cold one as soon as waiting costs more than all of that.
    """

    needs_prompt = True
    needs_pool = True
    needs_session = False

    def __init__(self, index: PrefixIndex) -> None:
        self._index = index
        self._turn = 0
        self._rooms: WeakKeyDictionary[Instance, Room] = WeakKeyDictionary()
        self._reuse_s = REUSE_S

    def choose(self, request: RoutedRequest, candidates: Sequence[Instance]) -> Plan:
        """Return the plan with the smallest predicted time to first token."""
        self._turn += 1
        warm = self._index.match(request.prompt.keys)
        plans = [self.plan(request, each, warm.get(each.mark, 0)) for each in candidates]
        costs = [self._cost(request, plan) for plan in plans]
        best = min(costs)
        bound = best * (1 + EQUAL_SHARE) + EQUAL_S
        equal = [plan for plan, cost in zip(plans, costs, strict=True) if cost <= bound]
        fewest = min((plan.serve.in_flight, -plan.local_tokens) for plan in equal)
        equal = [p for p in equal if (p.serve.in_flight, -p.local_tokens) == fewest]
        return equal[self._turn % len(equal)]

    def _cost(self, request: RoutedRequest, plan: Plan) -> float:
        """Return the predicted seconds, and those that the choice costs others."""
        cost = plan.predicted_s + OTHERS * plan.own_s
        room = self._rooms.get(plan.serve)
        if room is None:
            return cost
        capacity = plan.serve.facts.blocks
        new = request.prompt.tokens - plan.local_tokens
        blocks = int(new / request.prompt.block_tokens)
        age_s = room.age_s(request.ready_s, capacity, blocks)
        if age_s == math.inf:
            return cost
        wanted = math.exp(-age_s / self._reuse_s)
        return cost + KEEP * wanted * plan.serve.model.price(Work(new))[1]

    def plan(self, request: RoutedRequest, instance: Instance, warm_blocks: int) -> Plan:
        """Return what serving the request on this instance is expected to take."""
        prompt = request.prompt
        # Engines compute at least the last token, whatever they have.
        most = max(0.0, prompt.tokens - 1)
        local = min(warm_blocks * prompt.block_tokens, most)
        pool = min(request.pool_tokens, most)
        wait_s = instance.queue.wait_s(request.ready_s)
        running, rest = instance.in_flight, prompt.tokens - local
        work = Work(rest, 0.0, running, local, wait_s)
        computed = _priced(instance, local, local, work)
        if pool <= local:
            return computed
        load = pool - local
        far = load * far_share(request.pool_hosts, instance.url)
        work = Work(prompt.tokens - pool, load, running, pool, wait_s, far)
        loaded = _priced(instance, local, pool, work)
        return min(computed, loaded, key=lambda plan: plan.predicted_s)

    def sent(self, request: RoutedRequest, plan: Plan) -> None:
        """Note that the instance is about to have the whole prompt."""
        for instance in (plan.serve, plan.prefill):
            if instance is not None and request.prompt.keys:
                keys = request.prompt.keys[:KEYS_MAX]
                self._index.add(instance.mark, keys, instance.facts.blocks)
                there = plan.ahead if instance is plan.prefill and plan.ahead else plan
                self._note_room(request, instance, keys, there.local_tokens)

    def _note_room(
        self, request: RoutedRequest, instance: Instance, keys: Sequence[int], local: float
    ) -> None:
        known = min(len(keys), int(local / request.prompt.block_tokens))
        room = self._rooms.setdefault(instance, Room())
        age_s = room.sent(keys, known, request.ready_s, instance.facts.blocks)
        if age_s is not None:
            self._reuse_s = max(1.0, self._reuse_s + FOLLOW * (age_s - self._reuse_s))


def _priced(instance: Instance, local: float, pool: float, work: Work) -> Plan:
    predicted_s, own_s = instance.model.price(work)
    return Plan(instance, work, local, pool, work.prefill_tokens, predicted_s, own_s=own_s)


def far_share(hosts: Mapping[str, float], url: str) -> float:
    """Return which share of what the pool has of a prompt is on other hosts than an instance's;
    0 where that is not known."""
    total = sum(hosts.values())
    if not total:
        return 0.0
    own = _host_of(url)
    return sum(each for name, each in hosts.items() if _host(name) != own) / total


@lru_cache(maxsize=1024)
def _host_of(url: str) -> str | None:
    return urlsplit(url).hostname


@lru_cache(maxsize=1024)
def _host(address: str) -> str:
    """Return the host of an address with a port or without."""
    if address.startswith("["):
        return address[1:].partition("]")[0]
    return address.partition(":")[0] if address.count(":") == 1 else address
