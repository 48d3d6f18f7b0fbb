"""One engine behind the router: what it is, how it is, and what it has to do."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from moonpool.router.circuit import Circuit
from moonpool.router.latency import LatencyModel, Work
from moonpool.router.queue import Queue

NO_WORK = Work()
BOTH, PREFILL, DECODE = "both", "prefill", "decode"
ROLES = (BOTH, PREFILL, DECODE)


@dataclass(slots=True)
class EngineFacts:
    """What an engine says of itself; the defaults stand until it was asked.

    loras: path by name. root: the path or id of the base model. blocks: how many its KV cache
    holds, 0 where unknown. events: endpoints of its KV events as (publisher, replay), replay ""
    where there is none. started: when its process began, as it writes it.
    """

    models: tuple[str, ...] = ()
    root: str = ""
    loras: dict[str, str] = field(default_factory=dict)
    version: str = ""
    block_tokens: int = 0
    blocks: int = 0
    hash_algorithm: str = ""
    events: tuple[tuple[str, str], ...] = ()
    started: str = ""


@dataclass(slots=True, eq=False, weakref_slot=True)
class Instance:
    """An engine. ``mark`` is its number in the prefix index, unique while it is known.

    source: who named it ("config", "admin", "file", "kubernetes"). role: one of ROLES. bootstrap:
    base URL of its KV transfer's own server, "" where it has none. transfer: how it hands a prompt
    over, "" until that is known. pending_tokens: tokens that were sent and whose first answer has
    not come; queue: the same, as seconds of computing. down: why it is not used, "" while it is.
    waits: what waits for a first byte of it and would rather ask another one if it turns out to be
    dead.
    """

    url: str
    mark: int = 0
    source: str = "config"
    role: str = BOTH
    bootstrap: str = ""
    transfer: str = ""
    circuit: Circuit = field(default_factory=Circuit)
    model: LatencyModel = field(default_factory=LatencyModel)
    facts: EngineFacts = field(default_factory=EngineFacts)
    in_flight: int = 0
    answers: int = 0
    pending_tokens: int = 0
    draining: bool = False
    healthy: bool = True
    misses: int = 0
    asked: bool = False
    down: str = ""
    waits: set[asyncio.Timeout] = field(default_factory=set, repr=False)
    queue: Queue = field(default_factory=Queue)

    def is_up(self, now: float) -> bool:
        """Return whether the instance should be asked at ``now``."""
        return self.healthy and not self.draining and self.circuit.allows(now)

    def serves(self, model: str) -> bool:
        """Return whether it has the model; one that has not been asked yet may have any."""
        known = self.facts.models
        return not known or not model or model in known

    def work(self, prefill_tokens: float, load_tokens: float = 0.0) -> Work:
        """Return what would stand before the first token of one more request."""
        return Work(prefill_tokens, load_tokens, self.in_flight)


@dataclass(frozen=True, slots=True)
class Plan:
    """Who serves a request, and what that was expected to cost.

    ``serve`` answers the client. ``prefill`` computes the prompt first where prefill and decode
    are split, as ``ahead`` says; both are None everywhere else. local_tokens, pool_tokens: the
    prompt's head that is in the instance's own cache, and in the pool; exact when they come from
    block hashes. own_s: how long the instance computes for it.
    """

    serve: Instance
    work: Work = NO_WORK
    local_tokens: float = 0.0
    pool_tokens: float = 0.0
    prefill_tokens: float = 0.0
    predicted_s: float = 0.0
    prefill: Instance | None = None
    ahead: Plan | None = None
    own_s: float = 0.0


class Ticket:
    """A request's place in the load of the instance that serves it; every call may repeat."""

    __slots__ = ("_open", "_pending", "began_s", "plan")

    def __init__(self, plan: Plan, now: float) -> None:
        self.plan = plan
        self.began_s = now
        # Whole ones: what is added and taken away in another order leaves nothing behind.
        self._pending = round(plan.prefill_tokens)
        self._open = True
        plan.serve.in_flight += 1
        plan.serve.queue.enter(self, plan.own_s, now)
        plan.serve.pending_tokens += self._pending

    def first_token(self) -> None:
        """Take the prompt from what is to be prefilled."""
        instance = self.plan.serve
        instance.pending_tokens -= self._pending
        self._pending = 0
        instance.queue.leave(self)

    def end(self) -> None:
        """Take the request from the load."""
        if self._open:
            self._open = False
            self.first_token()
            self.plan.serve.in_flight -= 1
