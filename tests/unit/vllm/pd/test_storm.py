"""Many requests at once, peers that answer, fail, or write late, a pool that loses objects, clients
that leave: every request ends with the right bytes, and no block is lost."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.vllm.fakes import FakePool
from tests.unit.vllm.pd.engine import TIMEOUT_S, PDEngine, PDRequest, receives
from tests.unit.vllm.test_connector import BLOCK, make, pool  # noqa: F401

Make = Callable[..., Any]
TOKENS = 5 * BLOCK


class Storm:
    """Requests of one engine, and what happens to them."""

    def __init__(self, engine: PDEngine, seed: int) -> None:
        self.engine, self.rng = engine, random.Random(seed)
        self.open: dict[str, PDRequest] = {}
        self.count = 0
        self.served = 0

    def arrive(self) -> None:
        self.count += 1
        first = 1000 * self.rng.randint(0, 2)
        name = f"r{self.count}"
        request = receives(name, TOKENS, first)
        if self.rng.random() < 0.3:
            request.kv_transfer_params = None
        self.open[name] = request
        self.engine.add(request)

    def peer(self) -> None:
        """A transfer ends, well or not, in time or not."""
        fills = self.engine.peer.fills
        if not fills:
            return
        name = self.rng.choice(sorted(fills))
        request = self.engine.requests.get(name)
        late = request is None or name not in self.engine.waiting or name in self.gone()
        if late or self.rng.random() < 0.3:
            # Whatever it wrote, nobody may read it.
            self.engine.scribble(fills[name])
            self.engine.peer.write = lambda _: None
            self.engine.peer.arrive(name, failed=True)
            return
        sender = request
        assert sender is not None
        self.engine.peer.write = lambda blocks: self.engine.send(sender, blocks)
        self.engine.peer.arrive(name)

    def gone(self) -> set[str]:
        return set(self.engine.scheduler._scheduler._abandoned.values())

    def lose(self) -> None:
        """The pool loses an object."""
        if self.engine.pool.objects:
            del self.engine.pool.objects[self.rng.choice(sorted(self.engine.pool.objects))]

    def leave(self) -> None:
        """A client leaves while its request waits."""
        waiting = sorted(self.engine.waiting & set(self.open))
        if waiting:
            name = self.rng.choice(waiting)
            self.engine.finish(self.open.pop(name), "FINISHED_ABORTED")

    def late(self) -> None:
        self.engine.clock.now += TIMEOUT_S

    def flap(self) -> None:
        """The prefill instance stops to listen, or comes back."""
        self.engine.listening = not self.engine.listening
        self.engine.clock.now += 3.0

    def serve(self) -> None:
        """Compute and end what does not wait any more."""
        for name, request in list(self.open.items()):
            if name in self.engine.waiting:
                continue
            if name not in self.engine.tables:
                self.engine.admit(request)
                continue
            assert self.engine.right(request)
            self.engine.compute(request)
            assert self.engine.right(request)
            del self.open[name]
            self.engine.finish(request, "FINISHED_STOPPED")
            self.served += 1


@pytest.mark.parametrize("seed", range(40))
def test_whatever_happens_bytes_are_right_and_blocks_come_back(
    make: Make,  # noqa: F811
    pool: FakePool,  # noqa: F811
    seed: int,
) -> None:
    engine = PDEngine(make, pool, peer_timeout_s=TIMEOUT_S, peer_held_ratio=0.3)
    storm = Storm(engine, seed)
    happenings = [storm.peer, storm.peer, storm.peer, storm.serve, storm.serve, storm.lose]
    happenings += [storm.leave, storm.late, storm.flap]
    while storm.count < 30 or storm.open:
        if storm.count < 30 and len(engine.requests) < 5 and storm.rng.random() < 0.5:
            storm.arrive()
        storm.rng.choice(happenings)()
        engine.step()
    for name in sorted(engine.peer.fills):
        engine.scribble(engine.peer.fills[name])
        engine.peer.arrive(name, failed=True)
    engine.until(lambda: engine.step() and not engine.requests)
    engine.settle()
    assert storm.served > 10
    assert engine.scheduler._scheduler.quarantine.blocks == 0
    assert all(block.ref_cnt == 0 for block in engine.block_pool.blocks)
    assert not engine.scheduler._scheduler._open
    # What was saved meanwhile is right as well: served again from the pool alone.
    for first in (0, 1000, 2000):
        request = PDRequest(f"again{first}", TOKENS, None, first)
        if engine.add(request):
            engine.until_reported(request.request_id)
        assert engine.right(request)
