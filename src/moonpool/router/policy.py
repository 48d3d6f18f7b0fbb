"""Which instance gets a request: the simple policies, and all of them by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from moonpool.errors import ConfigError
from moonpool.router.index import PrefixIndex
from moonpool.router.instance import Instance, Plan
from moonpool.router.prompt import RoutedRequest

__all__ = [
    "NAMES", "Instance", "LeastLoaded", "Plan", "Policy", "RoundRobin", "RoutedRequest", "create",
]  # fmt: skip


class Policy(Protocol):
    """Chooses among instances that are up; called once for each attempt.

    needs_prompt: whether ``request.prompt`` must be filled in; needs_pool: ``pool_tokens`` too;
    needs_session: whether a session should be made of the prompt where the client names none.
    """

    needs_prompt: bool
    needs_pool: bool
    needs_session: bool

    def choose(self, request: RoutedRequest, candidates: Sequence[Instance]) -> Plan:
        """Return a plan with one of the candidates; there is always at least one."""

    def sent(self, request: RoutedRequest, plan: Plan) -> None:
        """Note that the plan is carried out."""


class RoundRobin:
    """Each request to the next instance, whatever it asks."""

    needs_prompt = False
    needs_pool = False
    needs_session = False

    def __init__(self) -> None:
        self._turn = 0

    def choose(self, request: RoutedRequest, candidates: Sequence[Instance]) -> Plan:
        """Return the candidate whose turn it is."""
        chosen = candidates[self._turn % len(candidates)]
        self._turn += 1
        return Plan(chosen)

    def sent(self, request: RoutedRequest, plan: Plan) -> None:
        """Note nothing."""


class LeastLoaded:
    """Each request to the instance with the fewest in flight; of several, in turn."""

    needs_prompt = False
    needs_pool = False
    needs_session = False

    def __init__(self) -> None:
        self._turn = 0

    def choose(self, request: RoutedRequest, candidates: Sequence[Instance]) -> Plan:
        """Return the candidate with the fewest requests in flight."""
        self._turn += 1
        fewest = min(candidate.in_flight for candidate in candidates)
        idle = [each for each in candidates if each.in_flight == fewest]
        return Plan(idle[self._turn % len(idle)])

    def sent(self, request: RoutedRequest, plan: Plan) -> None:
        """Note nothing."""


def _classes() -> dict[str, type[Any]]:
    from moonpool.router.prefix import PrefixPolicy
    from moonpool.router.session import SessionHash

    return {
        "prefix": PrefixPolicy,
        "session": SessionHash,
        "least_loaded": LeastLoaded,
        "round_robin": RoundRobin,
    }


NAMES = ("prefix", "session", "least_loaded", "round_robin")


def create(name: str, index: PrefixIndex) -> Policy:
    """Return the policy of that name; raise ConfigError for a name that is none of ``NAMES``."""
    made = _classes().get(name)
    if made is None:
        raise ConfigError(f"policy: {name!r} is not allowed; allowed: {', '.join(NAMES)}")
    policy: Policy = made(index) if name == "prefix" else made()
    return policy


def policy_name(policy: Policy) -> str:
    """Return the name under which ``create`` knows a policy, or that of its class."""
    names = {made: name for name, made in _classes().items()}
    return names.get(type(policy), type(policy).__name__)
