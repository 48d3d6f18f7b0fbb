"""What was measured on H200s beside its simulation (docs/benchmarks.md has the runs).

``H200_8B`` was fitted to single requests of an earlier run on one H200 (sim/hardware.py); the rates
from the model's shape were not fitted to anything here. The replay ran vLLM alone on two of them.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from moonpool.sim.events import Clock
from moonpool.sim.fleet.fleet import Fleet
from moonpool.sim.fleet.pool import PoolShape
from moonpool.sim.fleet.presets import HBM_GB_S, HBM_SHARE, preset
from moonpool.sim.fleet.records import Summary
from moonpool.sim.fleet.request import Request
from moonpool.sim.fleet.shape import FleetShape, Group
from moonpool.sim.fleet.traces import Timed
from moonpool.sim.hardware import H200_8B, Hardware

BLOCK_TOKENS, OBJECT_BLOCKS = 16, 16
NEW_TOKENS = 512
LENGTHS = (8_000, 32_000, 80_000, 120_000)
RECOMPUTED = (0.210, 1.166, 4.494, 8.823)
IN_HBM = (0.044, 0.044, 0.095, 0.131)
FROM_POOL = (0.058, 0.134, 0.280, 0.427)
REPLAY = {
    "turns a second": 2.99,
    "hit rate": 0.590,
    "TTFT p50, s": 0.93,
    "TTFT p90, s": 9.40,
    "end to end p50, s": 2.72,
}
"""24 conversations in closed loop on two H200s, 24 GiB of KV each, vLLM 0.24 alone, round robin."""
WEIGHTS_GB = 16.1
FAR_S = 1000.0


@dataclass(frozen=True, slots=True)
class Compared:
    """A measured figure, and that of a simulation."""

    name: str
    measured: float
    simulated: float

    @property
    def off(self) -> float:
        """How far off, as a share of the measured one."""
        return self.simulated / self.measured - 1


def _request(number: int, tokens: int) -> Request:
    blocks = tokens // BLOCK_TOKENS
    return Request(str(number), 0, [*range(number << 24, (number << 24) + blocks)], tokens, 1)


def ttfts(hardware: Hardware) -> list[Compared]:
    """Simulate single requests: new ones, then with 512 more tokens on the same engine, and on
    another one of the pool."""
    rows = []
    for number, length in enumerate(LENGTHS):
        shape = FleetShape(
            both=Group(2, hardware, 0.5),
            block_tokens=BLOCK_TOKENS,
            pool=PoolShape(100.0, OBJECT_BLOCKS),
        )
        new, there = _request(number, length), _request(number, length + NEW_TOKENS)
        known = _request(number, length + NEW_TOKENS)
        new.engine = known.engine = 0
        there.engine = 1
        Fleet(shape).run(Timed([(0.0, new), (FAR_S, known), (2 * FAR_S, there)]))
        # The other engine finds 512 tokens more in the pool than the first had: none is left.
        rows.append(Compared(f"TTFT of {length:,} tokens, new", RECOMPUTED[number], new.ttft_s))
        rows.append(Compared("  and 512 more, in HBM", IN_HBM[number], known.ttft_s))
        again = _request(number + len(LENGTHS), length + NEW_TOKENS)
        base = _request(number + len(LENGTHS), length)
        base.engine, again.engine = 0, 1
        Fleet(shape).run(Timed([(0.0, base), (FAR_S, again)]))
        rows.append(Compared("  from the pool", FROM_POOL[number], again.ttft_s))
    return rows


class _Replay:
    """24 conversations of 10 turns, as the measured run drew them."""

    conversations, turns = 24, 10
    common, first, growth, output, think_s = 12_000, 6_000, 2_242, 32, 0.5

    def start(self, clock: Clock, submit: Callable[[Request], None], until_s: float) -> None:
        """Begin all of them within two seconds."""
        for number in range(self.conversations):
            chance = random.Random(number)
            clock.at(chance.random() * 2, self._turn(clock, submit, number, 0, chance))

    def _turn(
        self,
        clock: Clock,
        submit: Callable[[Request], None],
        number: int,
        turn: int,
        chance: random.Random,
    ) -> Callable[[], None]:
        def send() -> None:
            tokens = self.common + self.first + turn * self.growth
            shared = self.common // BLOCK_TOKENS
            full = tokens // BLOCK_TOKENS
            base = (number + 1) << 24
            keys = [*range(shared), *range(base + shared, base + full)]
            request = Request(str(number), turn, keys, tokens, self.output)
            if turn + 1 < self.turns:
                following = self._turn(clock, submit, number, turn + 1, chance)
                request.then = lambda: clock.after(chance.expovariate(1 / self.think_s), following)  # type: ignore[assignment]
            submit(request)

        return send


def replay(hardware: Hardware) -> tuple[list[Compared], Summary]:
    """Simulate the replay on two H200s."""
    kv_tokens = (24 << 30) // hardware.kv_bytes
    group = Group(2, replace(hardware, hbm_tokens=kv_tokens), 0.5)
    records = Fleet(FleetShape(both=group, block_tokens=BLOCK_TOKENS)).run(_Replay())
    found = records.summary()
    values = (
        len(records) / float(records.column("end_s").max()),
        found.hit_rate,
        found.ttft_s.p50,
        found.ttft_s.p90,
        found.e2e_s.p50,
    )
    rows = [
        Compared(name, measured, simulated)
        for (name, measured), simulated in zip(REPLAY.items(), values, strict=True)
    ]
    return rows, found


def rates() -> dict[str, Hardware]:
    """Return the two sets of rates: fitted, and from the model's shape and the GPU's peaks.

    The measured engines ran without CUDA graphs, which holds steps up (15 ms); prompts were tokens.
    """
    weights_s = WEIGHTS_GB / (HBM_GB_S["h200"] * HBM_SHARE)

    def eager(found: Hardware) -> Hardware:
        return replace(
            found,
            step_s=0.0,
            launch_s=H200_8B.step_s,
            weights_s=weights_s,
            overhead_s=H200_8B.overhead_s,
            tokenise_s=0.0,
        )

    return {"fitted": eager(H200_8B), "from the shape": eager(preset("llama-3.1-8b", "h200", 1))}
