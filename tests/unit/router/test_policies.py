"""Policies, as pure functions of what is known."""

from __future__ import annotations

from collections import Counter

import pytest

from moonpool.errors import ConfigError
from moonpool.router.index import PrefixIndex
from moonpool.router.instance import Instance, Plan, Ticket
from moonpool.router.latency import PRIOR
from moonpool.router.policy import NAMES, LeastLoaded, RoundRobin, create
from moonpool.router.prefix import PrefixPolicy, far_share
from moonpool.router.prompt import Prompt, RoutedRequest
from moonpool.router.session import SessionHash

BLOCK = 16.0


def _instances(count: int) -> list[Instance]:
    return [Instance(f"http://{place}", mark=place) for place in range(count)]


def _request(keys: list[int] | None = None, session: str = "", pool: float = 0.0) -> RoutedRequest:
    keys = keys or []
    prompt = Prompt(keys, len(keys) * BLOCK + 1, BLOCK)
    request = RoutedRequest("/v1/completions", b"{}", 0.0, session=session, prompt=prompt)
    request.pool_tokens = pool
    return request


def test_policies_are_made_by_name() -> None:
    for name in NAMES:
        policy = create(name, PrefixIndex())
        assert isinstance(policy.choose(_request([1]), _instances(1)), Plan)
    with pytest.raises(ConfigError, match="policy: 'best' is not allowed; allowed: prefix"):
        create("best", PrefixIndex())


def test_round_robin_goes_round() -> None:
    policy, instances = RoundRobin(), _instances(3)
    chosen = [policy.choose(_request(), instances).serve.mark for _ in range(6)]
    assert chosen == [0, 1, 2, 0, 1, 2]


def test_least_loaded_takes_the_emptiest_in_turn() -> None:
    policy, instances = LeastLoaded(), _instances(3)
    instances[1].in_flight = 5
    chosen = Counter(policy.choose(_request(), instances).serve.mark for _ in range(10))
    assert chosen == {0: 5, 2: 5}


def test_sessions_stay_and_few_move() -> None:
    policy, instances = SessionHash(), _instances(4)
    names = [f"session-{number}" for number in range(400)]

    def homes(among: list[Instance]) -> dict[str, int]:
        return {name: policy.choose(_request(session=name), among).serve.mark for name in names}

    before, after = homes(instances), homes(instances[:3])
    assert homes(instances) == before
    assert min(Counter(before.values()).values()) > 60
    assert all(after[name] == home for name, home in before.items() if home != 3)


def test_requests_without_a_session_are_spread() -> None:
    policy, instances = SessionHash(), _instances(2)
    chosen = Counter(policy.choose(_request(), instances).serve.mark for _ in range(4))
    assert chosen == {0: 2, 1: 2}


def test_a_growing_chat_stays_where_its_prefix_is() -> None:
    policy, instances = PrefixPolicy(PrefixIndex()), _instances(4)
    first = policy.choose(_request(list(range(100))), instances)
    policy.sent(_request(list(range(100))), first)
    for _ in range(8):
        second = policy.choose(_request(list(range(150))), instances)
        assert second.serve is first.serve
        assert second.local_tokens == 100 * BLOCK
        assert second.prefill_tokens == 50 * BLOCK + 1


def test_cold_prompts_are_spread() -> None:
    policy, instances = PrefixPolicy(PrefixIndex()), _instances(4)
    homes: Counter[int] = Counter()
    for number in range(40):
        keys = list(range(number * 1000, number * 1000 + 50))
        plan = policy.choose(_request(keys), instances)
        policy.sent(_request(keys), plan)
        homes[plan.serve.mark] += 1
    assert min(homes.values()) >= 5


def test_it_spills_when_the_warm_instance_is_loaded() -> None:
    policy, instances = PrefixPolicy(PrefixIndex()), _instances(2)
    request = _request(list(range(100)))
    warm = policy.choose(request, instances)
    policy.sent(request, warm)
    tickets = []
    while (plan := policy.choose(request, instances)).serve is warm.serve:
        other = Plan(warm.serve, own_s=0.1)
        tickets.append(Ticket(other, 0.0))
        assert len(tickets) < 20
    assert plan.local_tokens == 0
    for ticket in tickets:
        ticket.end()
    assert policy.choose(request, instances).serve is warm.serve


def test_the_pool_makes_an_idle_instance_worth_it() -> None:
    policy, instances = PrefixPolicy(PrefixIndex()), _instances(2)
    request = _request(list(range(1000)), pool=900 * BLOCK)
    policy.sent(request, Plan(instances[0]))
    instances[0].queue.enter("other", 3.0, 0.0)
    plan = policy.choose(request, instances)
    assert plan.serve is instances[1]
    assert plan.pool_tokens == 900 * BLOCK
    assert plan.prefill_tokens == 100 * BLOCK + 1
    # Without the pool the same queue is worth the wait.
    assert policy.choose(_request(list(range(1000))), instances).serve is instances[0]


def test_a_slow_pool_is_not_counted_on() -> None:
    policy, (instance,) = PrefixPolicy(PrefixIndex()), _instances(1)
    instance.model._own = PRIOR._replace(prefill=0.1, load=5.0)
    plan = policy.choose(_request(list(range(100)), pool=1600.0), [instance])
    assert plan.prefill_tokens == 100 * BLOCK + 1


def test_of_equal_ones_the_host_that_has_the_pools_blocks_is_taken() -> None:
    policy = PrefixPolicy(PrefixIndex())
    instances = [Instance("http://10.0.0.1:8000", 0), Instance("http://10.0.0.2:8000", 1)]
    request = _request(list(range(4000)), pool=4000 * BLOCK)
    for host in ("10.0.0.2", "10.0.0.1"):
        request.pool_hosts = {f"{host}:50053": 4000 * BLOCK}
        plan = policy.choose(request, instances)
        assert plan.serve.url == f"http://{host}:8000"
        assert plan.work.far_tokens == 0


def test_the_share_on_other_hosts() -> None:
    hosts = {"10.0.0.1:50053": 300.0, "[fd00::1]:50053": 100.0}
    assert far_share(hosts, "http://10.0.0.1:8000") == 0.25
    assert far_share(hosts, "http://[fd00::1]:8000") == 0.75
    assert far_share(hosts, "http://10.0.0.3:8000") == 1.0
    for address in ("10.0.0.1", "10.0.0.1:1"):
        assert far_share({address: 1.0}, "http://10.0.0.1:8000") == 0.0
    for address in ("fd00::1", "[fd00::1]"):
        assert far_share({address: 1.0}, "http://[fd00::1]:8000") == 0.0
    assert far_share({}, "http://10.0.0.3:8000") == 0.0


def test_a_new_conversation_goes_where_what_is_forgotten_is_the_oldest() -> None:
    policy, instances = PrefixPolicy(PrefixIndex()), _instances(2)
    for instance in instances:
        instance.facts.blocks = 100
    for place, at in ((0, 1.0), (1, 50.0)):
        request = _request(list(range(1000 * place, 1000 * place + 95)))
        request.ready_s = at
        policy.sent(request, Plan(instances[place]))
    for turn in range(4):
        request = _request(list(range(5000 + 100 * turn, 5050 + 100 * turn)))
        request.ready_s = 60.0
        assert policy.choose(request, instances).serve is instances[0]


def test_a_ticket_counts_once() -> None:
    (instance,) = _instances(1)
    ticket = Ticket(Plan(instance, prefill_tokens=100.0), 0.0)
    assert (instance.in_flight, instance.pending_tokens) == (1, 100.0)
    ticket.first_token()
    ticket.first_token()
    assert instance.pending_tokens == 0.0
    ticket.end()
    ticket.end()
    assert instance.in_flight == 0
