"""Random requests, crashes and clock jumps, each step compared with the model."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from moonpool.core import messages as m
from moonpool.core.keys import pack
from moonpool.core.master import MasterConfig, MasterState
from tests.sim.model import Model, ModelNode

PAGE = 4096
NAMESPACE = b"N" * 16
# Blocks 0-3 and 4-7 are two chains; 8-11 all hang on 1; 12 and 13 are roots of their own.
PARENTS = [None, 0, 1, 2, None, 4, 5, 6, 1, 1, 1, 1, None, None]
KEYS: list[bytes] = [pack(bytes((i,)) * 16, NAMESPACE) for i in range(len(PARENTS))]
NODES = {"n0": 4, "n1": 6, "n2": 8}
CLIENTS = ["c0", "c1", "c2"]

numbers = st.integers(0, len(KEYS) - 1)
some = st.lists(numbers, min_size=1, max_size=5)
clients = st.sampled_from(CLIENTS)
picks = st.integers(0, 1000)


class Pool(RuleBasedStateMachine):
    """Drives MasterState and Model side by side."""

    config = MasterConfig(hard_pin_share=1.0)

    def __init__(self) -> None:
        super().__init__()
        self.master = MasterState(self.config, 1)
        self.model = Model()
        self.clock = 0.0
        self.sessions = dict.fromkeys(CLIENTS, 0)
        self.granted: list[int] = []
        self.mounts = 0

    def ask(self, request: Any, peer: str) -> Any:
        outcome = self.master.handle(request, peer, self.clock)
        for target, push in outcome.pushes:
            self.model.pushed(target, push)
        return outcome.reply

    def peer(self, client: str) -> str:
        return f"{client}.{self.sessions[client]}"

    @initialize()
    def begin(self) -> None:
        self.ask(m.Tick(), "")
        for name, pages in NODES.items():
            self.model.nodes[name] = ModelNode(name, pages)
            self.come(name)

    # --- nodes ------------------------------------------------------------------------------------

    def come(self, name: str) -> None:
        node = self.model.nodes[name]
        self.mounts += 1
        node.peer = f"{name}.{self.mounts}"
        info = m.SegmentInfo("s", name, name, "a", "/p", node.pages * PAGE, 2 * node.pages)
        node.handle = self.ask(m.Mount(info), node.peer).handle
        found = sorted(node.found.values(), key=lambda each: each.index)
        rejected = self.model.adopt(node)
        for index in rejected:
            del node.found[index]
        half = len(found) // 2
        reply = self.ask(m.Announce(node.handle, found[:half], False), node.peer)
        again = self.ask(m.Announce(node.handle, found[half:], True), node.peer)
        if len({each.key for each in found}) == len(found):
            assert sorted(reply.rejected + again.rejected) == sorted(rejected)

    def away(self) -> list[str]:
        return [node.name for node in self.model.nodes.values() if node.peer is None]

    @rule(name=st.sampled_from(list(NODES)))
    @precondition(lambda self: not self.away())
    def node_goes(self, name: str) -> None:
        node = self.model.nodes[name]
        peer = node.peer
        self.model.node_gone(node)
        self.ask(m.PeerGone(peer or "", "node"), "")

    @rule()
    @precondition(lambda self: self.away())
    def node_comes(self) -> None:
        self.come(self.away()[0])

    @rule(name=st.sampled_from(list(NODES)))
    def node_answers_fences(self, name: str) -> None:
        node = self.model.nodes[name]
        for fence in [each for each in node.fences if each.client in self.model.dead]:
            node.fences.remove(fence)
            self.model.writer_gone(name, fence)
            self.ask(m.WriterGone(fence.client, fence.generation), node.peer or "")

    # --- clients ----------------------------------------------------------------------------------

    @rule(
        client=clients,
        chosen=some,
        pages=st.integers(1, 5),
        replicas=st.integers(1, 3),
        preferred=st.sampled_from(["", "n0", "n2"]),
        pinned=st.sampled_from([False, False, False, False, True]),
    )
    def put_start(
        self,
        client: str,
        chosen: list[int],
        pages: int,
        replicas: int,
        preferred: str,
        pinned: bool,
    ) -> None:
        items = [self.item(number, pages) for number in chosen]
        self.start(client, m.PutStart(items, replicas, preferred, pinned))

    @staticmethod
    def item(number: int, pages: int) -> m.PutItem:
        parent = PARENTS[number]
        above = b"" if parent is None else KEYS[parent]
        return m.PutItem(KEYS[number], pages * PAGE - number, above)

    def start(self, client: str, request: m.PutStart) -> list[int]:
        """Start puts; return the generations granted."""
        self.model.expire_puts()
        reply = self.ask(request, self.peer(client))
        self.see_evictions()
        for item, grant in zip(request.items, reply.grants, strict=True):
            taken = item.key in self.model.objects or self.model.in_progress(item.key)
            if grant.code == 0:
                assert not taken
                self.granted.append(grant.generation)
                self.model.grant(item, grant, self.peer(client), pinned=request.pinned)
            elif grant.code == -200:
                assert not taken
                assert grant.retry_after_s > 0 or not self.model.puts
        return [grant.generation for grant in reply.grants if grant.code == 0]

    @rule(client=clients, last=numbers, pages=st.integers(1, 3), replicas=st.integers(1, 2))
    def put_chain(self, client: str, last: int, pages: int, replicas: int) -> None:
        """Put a block and all it hangs on, to the end."""
        chain: list[int] = []
        number: int | None = last
        while number is not None:
            chain.insert(0, number)
            number = PARENTS[number]
        items = [self.item(each, pages) for each in chain]
        generations = self.start(client, m.PutStart(items, replicas))
        expected = [self.model.end(each, self.peer(client)) for each in generations]
        request = m.PutEnd(generations, [1] * len(generations))
        assert self.ask(request, self.peer(client)).codes == expected

    def see_evictions(self) -> None:
        """Take evicted objects out of the model; they must have been fair game."""
        model = self.model
        present = self.ask(m.Exists(KEYS), "looker").present
        gone = {
            key
            for key, there in zip(KEYS, present, strict=True)
            if not there and key in model.objects
        }
        for key in gone:
            each = model.objects.pop(key)
            assert not each.pinned
            assert not model.is_leased(each.generation)
        if not self.master.state.eviction.inner:
            for each in model.objects.values():
                assert each.item.parent not in gone, "a parent went before its child"

    @rule(pick=picks, right=st.sampled_from([True, True, True, False]), client=clients)
    @precondition(lambda self: self.granted)
    def put_end(self, pick: int, right: bool, client: str) -> None:
        generation = self.granted[-1 - pick % min(len(self.granted), 8)]
        put = self.model.puts.get(generation)
        peer = put.client if put is not None and right else self.peer(client)
        expected = self.model.end(generation, peer)
        assert self.ask(m.PutEnd([generation], [1]), peer).codes == [expected]

    @rule(pick=picks)
    @precondition(lambda self: self.granted)
    def put_revoke(self, pick: int) -> None:
        generation = self.granted[-1 - pick % min(len(self.granted), 8)]
        put = self.model.puts.pop(generation, None)
        peer = put.client if put is not None else self.peer("c0")
        expected = -700 if put is None else 0
        assert self.ask(m.PutRevoke([generation]), peer).codes == [expected]

    @rule(pick=picks, right=st.sampled_from([True, True, True, False]), client=clients)
    @precondition(lambda self: self.granted)
    def put_abandon(self, pick: int, right: bool, client: str) -> None:
        generation = self.granted[-1 - pick % min(len(self.granted), 8)]
        put = self.model.puts.get(generation)
        peer = put.client if put is not None and right else self.peer(client)
        expected = -700 if put is None else 0 if put.client == peer else -601
        assert self.ask(m.PutAbandon([generation]), peer).codes == [expected]
        if put is not None and not expected:
            put.discarded = True

    def present(self, pick: int) -> int | None:
        """Pick a number whose object is there."""
        there = [i for i, key in enumerate(KEYS) if key in self.model.objects]
        return there[pick % len(there)] if there else None

    @rule(client=clients, pick=picks, lease_s=st.sampled_from([1, 20, 40]))
    @precondition(lambda self: self.model.objects)
    def get_present(self, client: str, pick: int, lease_s: int) -> None:
        number = self.present(pick)
        assert number is not None
        self.get(client, [number], pick % 4, lease_s)

    @rule(pick=picks)
    @precondition(lambda self: self.model.leases)
    def remove_leased(self, pick: int) -> None:
        leases = list(self.model.leases.values())
        generations = leases[pick % len(leases)][1]
        for number, key in enumerate(KEYS):
            known = self.model.objects.get(key)
            if known is not None and known.generation in generations:
                self.remove(number, force=False)
                break

    @rule(client=clients, chosen=some, lease=st.integers(0, 3), lease_s=st.integers(0, 40))
    def get(self, client: str, chosen: list[int], lease: int, lease_s: int) -> None:
        peer = self.peer(client)
        reply = self.ask(m.Get([KEYS[i] for i in chosen], lease, lease_s), peer)
        for number, located in zip(chosen, reply.objects, strict=True):
            known = self.model.objects.get(KEYS[number])
            assert located.generation == (known.generation if known else 0)
            if known is not None:
                where = {(place.node, place.offset) for place in known.places}
                slots = located.slots
                assert where == {(self.model.node_of(s.segment).name, s.offset) for s in slots}
        found = [KEYS[i] for i in chosen if KEYS[i] in self.model.objects]
        self.note_lease(peer, lease, lease_s, found)

    @rule(client=clients, chosen=some, lease=st.integers(0, 3), lease_s=st.integers(0, 40))
    def hold(self, client: str, chosen: list[int], lease: int, lease_s: int) -> None:
        peer = self.peer(client)
        leading: list[bytes] = []
        for number in chosen:
            if KEYS[number] not in self.model.objects:
                break
            leading.append(KEYS[number])
        reply = self.ask(m.Hold([KEYS[i] for i in chosen], lease, lease_s), peer)
        assert reply.count == len(leading)
        self.note_lease(peer, lease, lease_s, leading)

    def note_lease(self, peer: str, lease: int, lease_s: int, keys: list[bytes]) -> None:
        if not lease_s or not keys:
            return
        model = self.model
        expires, held = model.leases.get((peer, lease), (0.0, set()))
        if expires <= model.now:
            held = set()
        held = held | {model.objects[key].generation for key in keys}
        model.leases[peer, lease] = (max(expires, model.now + lease_s), held)

    @rule(client=clients, lease=st.integers(0, 3))
    def release(self, client: str, lease: int) -> None:
        self.model.leases.pop((self.peer(client), lease), None)
        assert self.ask(m.Release([lease]), self.peer(client)) is None

    @rule(number=numbers, force=st.booleans())
    def remove(self, number: int, force: bool) -> None:
        key = KEYS[number]
        known = self.model.objects.get(key)
        if known is None:
            expected = -703 if self.model.in_progress(key) else -704
        elif self.model.is_leased(known.generation) and not force:
            expected = -706
        else:
            expected = 0
            del self.model.objects[key]
            self.model.removed[key] = self.master.state.generation
        assert self.ask(m.Remove([key], force), "remover").codes == [expected]

    @rule(client=clients, dies=st.booleans())
    def client_goes(self, client: str, dies: bool) -> None:
        model, peer = self.model, self.peer(client)
        for name in [each for each in model.leases if each[0] == peer]:
            del model.leases[name]
        for put in model.puts.values():
            if put.client == peer:
                put.discarded = put.orphaned = True
        if dies:
            model.dead.add(peer)
            self.sessions[client] += 1
        self.ask(m.PeerGone(peer, "client"), "")

    # --- time -------------------------------------------------------------------------------------

    @rule(passed_s=st.sampled_from([0.25, 1.0, 11.0, 31.0, 1e6, -0.5, -50.0, -1e9]))
    def clock_moves(self, passed_s: float) -> None:
        self.clock += passed_s
        self.model.now += max(passed_s, 0.0)
        self.ask(m.GetSegments(), "looker")

    @rule()
    def tick(self) -> None:
        self.model.expire_puts()
        self.ask(m.Tick(), "")
        self.see_evictions()

    # --- what always holds ------------------------------------------------------------------------

    @invariant()
    def state_is_sound(self) -> None:
        self.master.validate_state()

    @invariant()
    def what_must_be_readable_is(self) -> None:
        present = self.ask(m.Exists(KEYS), "looker").present
        assert [bool(each) for each in present] == [key in self.model.objects for key in KEYS]
        chain = b"".join(bytes((i,)) * 16 for i in range(4))
        count = next((i for i in range(4) if not present[i]), 4)
        assert self.ask(m.Match(NAMESPACE, chain, 16), "looker").count == count

    def teardown(self) -> None:
        """When all clients are gone and all nodes are back, no space is lost."""
        for client in CLIENTS:
            self.client_goes(client, dies=True)
            self.model.dead.update(f"{client}.{i}" for i in range(self.sessions[client] + 1))
        for name, node in self.model.nodes.items():
            if node.peer is None:
                self.come(name)
        for name in self.model.nodes:
            self.node_answers_fences(name)
        self.master.validate_state()
        state = self.master.state
        assert not state.puts
        assert not state.leases.count
        self.ask(m.RemoveAll(force=True), "remover")
        self.master.validate_state()
        assert state.segments.fill_ratio() == 0


TestPool = Pool.TestCase
TestPool.settings = settings(
    max_examples=200,
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
