"""The router's own policies, choosing among simulated engines."""

from __future__ import annotations

from collections.abc import Callable

from moonpool.router import policy as policies
from moonpool.router.index import PrefixIndex
from moonpool.router.instance import EngineFacts, Instance, Ticket
from moonpool.router.latency import LatencyModel
from moonpool.router.prompt import Prompt, RoutedRequest
from moonpool.sim.events import Clock
from moonpool.sim.fleet.engine import Engine
from moonpool.sim.fleet.pool import FleetPool
from moonpool.sim.fleet.request import Request

PATH = "/v1/completions"


class FleetRouter:
    """One policy over engines of one kind, told what the router would be told of them."""

    def __init__(
        self, clock: Clock, name: str, block_tokens: int, pool: FleetPool | None = None
    ) -> None:
        self.index = PrefixIndex()
        self._policy = policies.create(name, self.index)
        self.needs_blocks = self._policy.needs_prompt
        self._clock, self._block, self._pool = clock, block_tokens, pool
        self._fleet = LatencyModel()
        self._instances: list[Instance] = []
        self._engines: list[Engine] = []

    def add(self, make: Callable[[Callable[[bool, list[int]], None]], Engine], host: int) -> Engine:
        """Add an engine, made with what it shall tell of its blocks."""
        mark = len(self._engines)
        instance = Instance(f"http://host-{host}:{8000 + mark}", mark=mark)
        instance.model = LatencyModel(self._fleet)

        def changed(came: bool, keys: list[int]) -> None:
            if came:
                self.index.add(mark, keys, instance.facts.blocks)
            else:
                self.index.remove(mark, keys)

        engine = make(changed)
        instance.facts = EngineFacts(block_tokens=self._block, blocks=engine.cache.blocks)
        self._instances.append(instance)
        self._engines.append(engine)
        return engine

    def choose(
        self, request: Request, given: int = -1
    ) -> tuple[Engine, Ticket, Callable[[], None]]:
        """Return the engine that a request goes to, what stands for it in that engine's load, and
        what to call at its first token. given: the number of an engine it must go to."""
        now, policy = self._clock.now_s, self._policy
        routed = RoutedRequest(PATH, b"", request.arrived_s, now, session=request.session)
        if policy.needs_prompt:
            routed.prompt = Prompt(request.keys, request.prompt_tokens, self._block, exact=True)
        if policy.needs_pool and self._pool is not None:
            routed.pool_tokens = float(self._pool.match(request.keys) * self._block)
        open_to = self._instances if given < 0 else [self._instances[given]]
        plan = policy.choose(routed, open_to)
        policy.sent(routed, plan)
        ticket = Ticket(plan, now)

        def first() -> None:
            ticket.first_token()
            if policy.needs_prompt:
                seconds = self._clock.now_s - now
                self._fleet.observe(plan.work, seconds)
                plan.serve.model.observe(plan.work, seconds)

        return self._engines[plan.serve.mark], ticket, first
