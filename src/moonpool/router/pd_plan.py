"""Which engine prefills and which one decodes, and when one of them does both."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from moonpool.router.instance import PREFILL, Instance, Plan
from moonpool.router.members import Members
from moonpool.router.metrics import RouterMetrics
from moonpool.router.options import Options
from moonpool.router.pd_params import AUTO, MOONCAKE, POOL, whole_because
from moonpool.router.policy import Policy
from moonpool.router.prompt import RoutedRequest

# Of the tokens to which a decoding engine prefills for itself what it has most of, this part is
# not worth asking another engine at all.
SHORT_SHARE = 1 / 8
MOST = 0.5
# A queue before the prefilling engines is not worth waiting in if it takes so many times as long.
SPILL = 3.0
BYTES_A_TOKEN = 4


@dataclass(slots=True)
class Tried:
    """Engines that gave no answer to a request. prefills_reached: how many prefilling ones hung up
    on it; whole: it must not be split any more."""

    serving: list[Instance] = field(default_factory=list)
    prefilling: list[Instance] = field(default_factory=list)
    prefills_reached: int = 0
    whole: bool = False


def way_of(instance: Instance, options: Options) -> str:
    """Return how the instance hands KV over: one of pd_params.WAYS, AUTO until it is known."""
    if options.pd != AUTO:
        return options.pd
    return MOONCAKE if instance.bootstrap else instance.transfer or AUTO


def bypass_because(direct: Plan, ahead: Plan, decode: Plan, tokens: float, bound: float) -> str:
    """Return why the decoding engine should prefill for itself, "" if it should not.

    bound: tokens that it may prefill where that is no slower and most of the prompt is there.
    """
    left = direct.prefill_tokens
    if left <= bound * SHORT_SHARE:
        return "short"
    split_s = ahead.predicted_s + decode.predicted_s
    if left <= bound and left <= tokens * (1 - MOST) and direct.predicted_s <= split_s:
        return "covered"
    return "queue" if direct.predicted_s * SPILL < split_s else ""


class Planner:
    """Makes plans of the instances as they are, by any policy."""

    def __init__(
        self,
        members: Members,
        metrics: RouterMetrics,
        clock: Callable[[], float],
        pool_down: Callable[[], bool] = lambda: False,
    ) -> None:
        """pool_down: whether the pool is known to be out of reach."""
        self._members, self._metrics, self._clock = members, metrics, clock
        self._pool_down = pool_down
        self._policies: tuple[Policy, Policy] | None = None

    def plan(
        self, routed: RoutedRequest, tried: Tried, policy: Policy, options: Options
    ) -> Plan | None:
        """Return who serves the request now, None where nobody is left."""
        home = routed.home
        if home is not None and home in self._members.instances:
            return None if tried.serving else Plan(home)
        serving = self.candidates(routed.model, tried.serving)
        if not serving:
            return None
        prefilling = self._prefilling(routed, tried)
        # An engine that only sends KV may end itself when it is told to receive some.
        if not prefilling or serving[0].role == PREFILL:
            return policy.choose(routed, serving)
        ahead = self._ahead(policy).choose(routed, prefilling)
        assert ahead.serve.role == PREFILL, "chosen among these"
        way = way_of(ahead.serve, options)
        why = whole_because(routed.path, routed.fields, way)
        if not why and way == POOL and self._pool_down():
            why = "pool down"
        direct = policy.choose(routed, serving)
        decode = self._decode(routed, direct, serving, policy)
        if not why and policy.needs_prompt:
            bound = options.bypass_tokens
            why = bypass_because(direct, ahead, decode, routed.prompt.tokens, bound)
        elif not why:
            tokens = len(routed.body) / BYTES_A_TOKEN
            why = "short" if tokens <= options.bypass_tokens * SHORT_SHARE else ""
        if why:
            self._metrics.pd_requests.labels("bypassed", why).inc()
            return direct
        return dataclasses.replace(decode, prefill=ahead.serve, ahead=ahead)

    def candidates(self, model: str, tried: Sequence[Instance]) -> list[Instance]:
        """Return the instances that may answer: those that are up and have the model, else those
        that are up, else all that are not draining. Engines that prefill are the last resort."""
        now = self._clock()
        left = [each for each in self._members.instances if each not in tried]
        ups = [each for each in left if each.is_up(now)]
        if ups:
            fit = [each for each in ups if each.role != PREFILL] or ups
            return [each for each in fit if each.serves(model)] or fit
        rest = [each for each in left if not each.draining]
        return [each for each in rest if each.role != PREFILL] or rest

    def _prefilling(self, routed: RoutedRequest, tried: Tried) -> list[Instance]:
        if routed.fields is None:
            return []
        known = [each for each in self._members.instances if each.role == PREFILL]
        if not known:
            return []
        now = self._clock()
        left = [
            each
            for each in known
            if each.is_up(now) and each not in tried.prefilling and each.serves(routed.model)
        ]
        if (tried.whole or not left) and not tried.prefilling:
            self._metrics.pd_requests.labels("bypassed", "no prefill engine").inc()
        return [] if tried.whole else left

    def _ahead(self, policy: Policy) -> Policy:
        """Return a policy of the same kind, with turns of its own."""
        if self._policies is None or self._policies[0] is not policy:
            self._policies = (policy, copy.copy(policy))
        return self._policies[1]

    def _decode(
        self, routed: RoutedRequest, direct: Plan, serving: Sequence[Instance], policy: Policy
    ) -> Plan:
        """Return the plan of the half that loads what another engine computes."""
        if not policy.needs_prompt:
            return direct
        tokens = max(0.0, routed.prompt.tokens - 1)
        handed = dataclasses.replace(routed, pool_tokens=tokens)
        chosen = policy.choose(handed, serving)
        local = min(chosen.local_tokens, tokens)
        work = dataclasses.replace(chosen.work, prefill_tokens=1.0, load_tokens=tokens - local)
        predicted_s = chosen.serve.model.predict(work)
        return Plan(chosen.serve, work, local, tokens, 1.0, predicted_s)
