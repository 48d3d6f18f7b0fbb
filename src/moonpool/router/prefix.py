"""Each request where its first token is expected soonest."""

from __future__ import annotations

from collections.abc import Sequence

from moonpool.router.index import PrefixIndex
from moonpool.router.instance import Instance, Plan
from moonpool.router.prompt import RoutedRequest

# Predictions this close are taken for equal: the emptier instance gets the request.
EQUAL_SHARE = 0.05
EQUAL_S = 0.001
# Of a longer prompt only so many blocks are noted: it must not hold up the others.
KEYS_MAX = 16_384


class PrefixPolicy:
    """Predicts the time to first token on every candidate and takes the smallest.

    The prediction adds what waits before the request, what must be loaded from the pool and what
    must be computed, each at the rate learned for that instance. A warm instance that is loaded
    loses to a cold one as soon as waiting costs more than computing.
    """

    needs_prompt = True
    needs_pool = True
    needs_session = False

    def __init__(self, index: PrefixIndex) -> None:
        self._index = index
        self._turn = 0

    def choose(self, request: RoutedRequest, candidates: Sequence[Instance]) -> Plan:
        """Return the plan with the smallest predicted time to first token."""
        self._turn += 1
        warm = self._index.match(request.prompt.keys)
        plans = [self.plan(request, each, warm.get(each.mark, 0)) for each in candidates]
        best = min(plan.predicted_s for plan in plans)
        bound = best * (1 + EQUAL_SHARE) + EQUAL_S
        equal = [plan for plan in plans if plan.predicted_s <= bound]
        fewest = min((plan.serve.in_flight, -plan.local_tokens) for plan in equal)
        equal = [p for p in equal if (p.serve.in_flight, -p.local_tokens) == fewest]
        return equal[self._turn % len(equal)]

    def plan(self, request: RoutedRequest, instance: Instance, warm_blocks: int) -> Plan:
        """Return what serving the request on this instance is expected to take."""
        prompt = request.prompt
        # Engines compute at least the last token, whatever they have.
        most = max(0.0, prompt.tokens - 1)
        local = min(warm_blocks * prompt.block_tokens, most)
        pool = min(request.pool_tokens, most)
        computed = self._priced(instance, local, local, prompt.tokens - local)
        if pool <= local:
            return computed
        loaded = self._priced(instance, local, pool, prompt.tokens - pool)
        return min(computed, loaded, key=lambda plan: plan.predicted_s)

    def _priced(self, instance: Instance, local: float, pool: float, prefill: float) -> Plan:
        work = instance.work(prefill, pool - local)
        return Plan(instance, work, local, pool, prefill, instance.model.predict(work))

    def sent(self, request: RoutedRequest, plan: Plan) -> None:
        """Note that the instance is about to have the whole prompt."""
        for instance in (plan.serve, plan.prefill):
            if instance is not None and request.prompt.keys:
                keys = request.prompt.keys[:KEYS_MAX]
                self._index.add(instance.mark, keys, instance.facts.blocks)
