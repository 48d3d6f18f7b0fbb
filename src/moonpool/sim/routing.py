"""The router's own code under a virtual clock: policy, prefix index, learning, admission."""

from __future__ import annotations

from collections.abc import Callable

from moonpool.router import policy as policies
from moonpool.router.admission import Admission, Entry, Limits
from moonpool.router.index import PrefixIndex
from moonpool.router.instance import EngineFacts, Instance, Plan, Ticket
from moonpool.router.members import Members
from moonpool.router.prompt import Prompt, RoutedRequest
from moonpool.sim.engine import Engine
from moonpool.sim.events import Clock
from moonpool.sim.job import Job
from moonpool.sim.pool import PoolModel

PATH = "/v1/completions"
# What is asked is what is measured: nothing is sent away.
UNBOUNDED = Limits(in_flight=1 << 40, queue=1 << 40)


class SimRouter:
    """Does with each job what the front does with a request, at the same moments.

    events: whether engines tell which blocks they have; without that the router goes by what it
    has sent them. learns: whether it learns from first tokens.
    """

    def __init__(
        self,
        clock: Clock,
        policy: str,
        block_tokens: int,
        pool: PoolModel | None,
        *,
        events: bool = True,
        learns: bool = True,
        limits: Limits = UNBOUNDED,
    ) -> None:
        self.index = PrefixIndex()
        self.members = Members(self.index)
        self.policy = policies.create(policy, self.index)
        self.admission = Admission(limits)
        self._clock, self._pool, self._block = clock, pool, block_tokens
        self._events, self._learns = events, learns
        self._engines: dict[Instance, Engine] = {}

    def join(
        self, make: Callable[[Callable[[bool, list[int]], None]], Engine], blocks: int, host: int
    ) -> None:
        """Add an engine of a host, made with what it shall tell of its blocks."""
        instance = self.members.add(f"http://host-{host}:{8000 + len(self._engines)}")
        facts = EngineFacts(block_tokens=self._block, blocks=blocks)
        self.members.learn(instance, facts)
        self._engines[instance] = make(lambda came, keys: self._changed(instance, came, keys))
        self.admission.resize(len(self._engines))

    def _changed(self, instance: Instance, came: bool, keys: list[int]) -> None:
        if not self._events:
            return
        if came:
            self.index.add(instance.mark, keys, instance.facts.blocks)
        else:
            self.index.remove(instance.mark, keys)

    def submit(self, job: Job) -> None:
        """Take a job: at once, when its turn comes, or, refused, never."""
        entry = self.admission.arrive("", 0, self._clock.now_s)
        if entry.admitted:
            self._send(job, entry)
        else:
            entry.decided = lambda let_in: self._send(job, entry) if let_in else None

    def _send(self, job: Job, entry: Entry) -> None:
        now = self._clock.now_s
        routed = RoutedRequest(PATH, b"", job.arrived_s, now, session=job.session, stream=True)
        if self.policy.needs_prompt:
            routed.prompt = Prompt(job.keys, job.prompt_tokens, self._block, exact=True)
        if self.policy.needs_pool and self._pool is not None:
            found = self._pool.match(job.keys)
            routed.pool_tokens = float(found * self._block)
            routed.pool_hosts = {
                f"host-{host}": float(count * self._block)
                for host, count in self._pool.hosts_of(job.keys[:found]).items()
            }
        candidates = [each for each in self.members.instances if each.is_up(now)]
        plan = self.policy.choose(routed, candidates)
        self.policy.sent(routed, plan)
        ticket = Ticket(plan, now)
        job.on_first.append(lambda: self._first_token(plan, ticket))
        job.on_end.append(lambda: self._end(ticket, entry, now))
        self._engines[plan.serve].submit(job)

    def _first_token(self, plan: Plan, ticket: Ticket) -> None:
        seconds = self._clock.now_s - ticket.began_s
        plan.serve.circuit.success()
        plan.serve.answers += 1
        ticket.first_token()
        if self._learns:
            self.members.fleet.observe(plan.work, seconds)
            plan.serve.model.observe(plan.work, seconds)

    def _end(self, ticket: Ticket, entry: Entry, began_s: float) -> None:
        ticket.end()
        self.admission.leave(entry, self._clock.now_s - began_s)
