"""Measurements on GPUs: ``python -m bench.gpu STAGE... [--out DIR] [--cpu] [--gpus N]``.

Each stage starts what it needs, prints as it goes, and leaves STAGE.json and logs in the
directory. ``--cpu`` runs the same on a CPU build of vLLM with a tiny model: a rehearsal.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gzip
import json
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from bench.gpu import cost, equality, loading, rig, split, ttft
from bench.gpu import replay as conversations
from bench.gpu.model import LLAMA_8B, SMALL, TINY, Model, write_model
from bench.gpu.rig import GIB, Bench

LENGTHS = [8_000, 32_000, 64_000, 80_000, 120_000]
PORT = 50063
MOONCAKE_LONGEST = int(os.environ.get("MOONCAKE_LONGEST", "80000"))
VARIANTS: dict[str, dict[str, Any]] = {
    "process": {},
    "thread": {"mover": "thread"},
    "unpacked": {"pack_blocks": False},
    "no-saves": {"kv_role": "kv_consumer", "save_decode": False},
}


class Stages:
    """The stages; sizes follow from whether this is a rehearsal."""

    def __init__(self, bench: Bench, gpus: int, mover: str) -> None:
        self.bench, self.gpus = bench, gpus
        self.small = bench.cpu
        self.model = TINY if bench.cpu else LLAMA_8B
        self.kv_bytes = 64 << 20 if bench.cpu else 17 * GIB
        self.pool_bytes = GIB if bench.cpu else int(os.environ.get("POOL_GIB", "56")) * GIB
        self.lengths = [300, 1000] if bench.cpu else LENGTHS
        if "LENGTHS" in os.environ:
            self.lengths = [int(n) for n in os.environ["LENGTHS"].split(",")]
        self.extra: dict[str, Any] = {"lookup_wait_ms": 200} if bench.cpu else {}
        if mover:
            self.extra["mover"] = mover

    def options(self, connector: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
        """Return an engine's options."""
        model: Model = more.pop("model", self.model)
        files = write_model(model, self.bench.place / f"model-{model.hidden}")
        kv_bytes = more.pop("kv_bytes", self.kv_bytes)
        options = rig.engine_options(self.bench, model, files, kv_bytes)
        return {**options, **more, **({"connector": connector} if connector else {})}

    async def pool(self) -> Any:
        """TTFT of recompute, HBM and pool; the cost of saves and misses; the decode rhythm.

        PARTS says which of them, in which order.
        """
        bench = self.bench
        parts = os.environ.get("PARTS", "ttft,cold,no_hits,saves,loads").split(",")
        result: dict[str, Any] = {"token_bytes": self.model.token_bytes}
        if not self.small:
            result["bus"] = await ttft.bus(bench)
        async with rig.pool(bench, self.pool_bytes) as pool:
            ours = self.options(pool.connector(**self.extra))
            environment = {"VLLM_LOGGING_LEVEL": os.environ.get("SECOND_LOGS", "INFO")}
            kinds = {
                "plain": self.options(),
                "first": ours,
                "second": {**ours, "environment": environment},
            }
            async with rig.engines(bench, kinds) as found:
                for engine in found.values():
                    await engine.generate([(3, 300 if self.small else 4000)])
                for number, part in enumerate(parts):
                    done = await self._part(part, number, *found.values())
                    result[f"{part}_{number}" if part in result else part] = done
                    bench.keep("pool", result)
        return result

    async def _part(
        self,
        part: str,
        number: int,
        plain: rig.Engine,
        first: rig.Engine,
        second: rig.Engine,
    ) -> Any:
        bench = self.bench
        if part == "ttft":
            return await ttft.moonpool(bench, self.lengths, plain, first, second)
        if part == "cold":
            tokens, rounds = (600, 2) if self.small else (32_000, 5)
            return await cost.cold_prefill(bench, tokens, rounds, plain, first)
        if part in ("no_hits", "no_hits_many"):
            prompts, tokens = (4, 300) if self.small else (24, 4000)
            # Many: more than the engine has blocks for at once.
            prompts *= 2 if part == "no_hits_many" else 1
            rounds, seed = int(os.environ.get("ROUNDS", "3")), 100_000 * (number + 1)
            return await cost.no_hits(
                bench,
                cost.Misses(prompts, tokens, rounds, seed),
                {"plain": plain, "saving": first},
            )
        if part == "quiet":
            return await self._quiet(plain, first)
        if part == "spy":
            return [await self._spied(engine) for engine in (plain, first)]
        if part == "loads":
            return await self._beside_loads(plain, first, second)
        return await self._beside_saves(plain, first)

    async def variants(self) -> Any:
        """The cost of saves and misses by setting of the connector: which part costs what.

        VARIANTS: JSON, by name the kv_connector_extra_config, with ``kv_role`` taken out.
        """
        given = json.loads(os.environ.get("VARIANTS", "null")) or VARIANTS
        tokens = 600 if self.small else 32_000
        common: dict[str, Any] = {"max_model_len": 1500 if self.small else 36_000}
        kv_bytes = self.kv_bytes if self.small else 5 * GIB
        async with rig.pool(self.bench, self.pool_bytes) as pool:
            kinds = {"plain": self.options(kv_bytes=kv_bytes, **common)}
            for name, extra in given.items():
                role = extra.pop("kv_role", "kv_both")
                connector = {**pool.connector(**self.extra, **extra), "kv_role": role}
                kinds[name] = self.options(connector, kv_bytes=kv_bytes, **common)
            async with rig.engines(self.bench, kinds) as found:
                size = (2, 200, 1) if self.small else (24, 4000, 3)
                rounds = 1 if self.small else 5
                return await cost.variants(self.bench, tokens, rounds, size, found)

    async def _beside_loads(
        self, plain: rig.Engine, first: rig.Engine, second: rig.Engine
    ) -> dict[str, Any]:
        """More prefixes in turn than the pooled engine can keep, so that each is loaded; two that
        plain vLLM keeps."""
        tokens, count = (300, 3) if self.small else (32_000, 8)
        stored = [[(60_000 + i, tokens)] for i in range(count)]
        for prompt in stored:
            await first.generate(prompt)
        for prompt in stored[:2]:
            await plain.generate(prompt)
        await asyncio.sleep(1)
        sides = [
            cost.Side("plain", plain, cost.cycle(stored[:2])),
            cost.Side("pooled", second, cost.cycle(stored)),
        ]
        every_s = float(os.environ.get("LOADS_EVERY_S", "0.25"))
        return await cost.rhythm(self.bench, "loads of other requests", sides, self.batch, every_s)

    async def _beside_saves(self, plain: rig.Engine, first: rig.Engine) -> dict[str, Any]:
        fresh = 300 if self.small else 8_000
        sides = [
            cost.Side("plain", plain, cost.unseen(fresh, 2_000_000)),
            cost.Side("pooled", first, cost.unseen(fresh, 3_000_000)),
        ]
        every_s = float(os.environ.get("SAVES_EVERY_S", "0.5"))
        return await cost.rhythm(self.bench, "saves of other requests", sides, self.batch, every_s)

    async def _quiet(self, plain: rig.Engine, first: rig.Engine) -> dict[str, Any]:
        sides = [cost.Side("plain", plain, list), cost.Side("pooled", first, list)]
        return await cost.rhythm(self.bench, "nothing else", sides, self.batch, 0.0)

    async def _spied(self, engine: rig.Engine) -> str:
        """Sample what an engine's Python does while it decodes; SPY is py-spy's program."""
        target = self.bench.out / f"spy-{engine.name}.txt"
        options = ["-s", "-d", "4", "-r", "200", "-f", "raw", "-o", str(target)]
        command = [os.environ["SPY"], "record", "--pid", str(engine.pid), *options]
        decoding = asyncio.create_task(
            cost.rhythm(
                self.bench, "spied on", [cost.Side(engine.name, engine, list)],
                cost.Batch(32, 250, 1), 0.0,
            )
        )  # fmt: skip
        await asyncio.sleep(2)
        spy = await asyncio.create_subprocess_exec(*command)
        await spy.wait()
        await decoding
        return target.name

    @property
    def batch(self) -> cost.Batch:
        """The decode batch whose rhythm is measured."""
        rounds = int(os.environ.get("BATCHES", "3"))
        return cost.Batch(2, 300, 1) if self.small else cost.Batch(32, 200, rounds)

    async def loading(self) -> Any:
        """Loads by the connector's own code, without an engine, from huge and from small pages."""
        size = loading.SMALL if self.small else loading.FULL
        result: dict[str, Any] = {}
        if not self.small:
            result["bus"] = await ttft.bus(self.bench)
        for kind, ways in (("huge", loading.WAYS), ("small", loading.WAYS[:1])):
            if kind not in os.environ.get("PAGES", "huge,small"):
                continue
            nbytes = min(self.pool_bytes, 28 * GIB)
            async with rig.pool(self.bench, nbytes, huge_pages=kind == "huge") as pool:
                self.bench.say(f"   {kind} pages")
                result[kind] = await loading.measure(self.bench, pool, size, ways)
            self.bench.keep("loading", result)
        return result

    async def offload(self) -> Any:
        """TTFT of vLLM's OffloadingConnector, which shares with nobody."""
        async with rig.engines(
            self.bench, {"offload": self.options(_offloading(self.pool_bytes * 5 // 7))}
        ) as found:
            engine = found["offload"]
            await engine.generate([(3, 4000)])
            return {"ttft": await ttft.offloading(self.bench, self.lengths, engine)}

    async def mooncake(self) -> Any:
        """TTFT of vLLM's MooncakeStoreConnector over TCP, from another process."""
        command, environment = ttft.write_mooncake(self.bench, PORT, 20 * GIB)
        log = (self.bench.out / "mooncake_master.log").open("w")
        master = await asyncio.create_subprocess_exec(*command, stdout=log, stderr=log)
        connector = {
            "kv_connector": "MooncakeStoreConnector",
            "kv_role": "kv_both",
            "kv_load_failure_policy": "recompute",
            "kv_connector_extra_config": {"enable_cross_layers_blocks": True},
        }
        try:
            kind = self.options(connector, environment=environment)
            async with rig.engines(self.bench, {"mc-first": kind, "mc-second": kind}) as found:
                lengths = [n for n in self.lengths if n <= MOONCAKE_LONGEST]
                first, second = found["mc-first"], found["mc-second"]
                return {"ttft": await ttft.mooncake(self.bench, lengths, first, second)}
        finally:
            with contextlib.suppress(ProcessLookupError):
                master.kill()

    async def equality(self) -> Any:
        """Outputs of pool hits against plain vLLM's, token by token."""
        model = SMALL if not self.small else self.model
        kv_bytes = self.kv_bytes if self.small else 4 * GIB
        async with rig.pool(self.bench, min(self.pool_bytes, 24 * GIB)) as pool:
            plain = self.options(model=model, kv_bytes=kv_bytes)
            ours = self.options(pool.connector(**self.extra), model=model, kv_bytes=kv_bytes)
            kinds = {"eq-plain": plain, "eq-first": ours, "eq-second": ours}
            async with rig.engines(self.bench, kinds) as found:
                count, longest = (6, 900) if self.small else (200, 6000)
                return await equality.compare(self.bench, count, longest, *found.values())

    async def split(self) -> Any:
        """Prefill here, decode there: TTFT, and outputs token by token.

        Through the pool alone; with PEER=nixl through NIXL, the pool beside it (MultiConnector).
        """
        peers = os.environ.get("PEER") == "nixl"
        repeats = int(os.environ.get("REPEATS", "1" if self.small else "5"))
        result: dict[str, Any] = {"gpus": self.gpus}
        models = {"ttft": self.model, "equality": self.model if self.small else SMALL}
        for part in os.environ.get("PARTS", "ttft,equality").split(","):
            model = models[part]
            kv_bytes = self.kv_bytes if self.small else (17 if part == "ttft" else 4) * GIB
            gpus = {"split-d": 1 % self.gpus}
            async with rig.pool(self.bench, min(self.pool_bytes, 40 * GIB)) as pool:
                kinds = {"split-plain": self.options(model=model, kv_bytes=kv_bytes)}
                roles = ("split-p", "kv_producer"), ("split-d", "kv_consumer")
                for number, (name, role) in enumerate(roles):
                    own = {**pool.connector(**self.extra), "kv_role": role}
                    with_it = split.below_multi(own, number) if peers else {"connector": own}
                    kinds[name] = self.options(model=model, kv_bytes=kv_bytes, **with_it)
                async with rig.engines(self.bench, kinds, gpus) as found:
                    engines = [*found.values()]
                    if part == "ttft":
                        rows = await split.first_tokens(
                            self.bench, self.lengths, repeats, *engines, peers=peers
                        )
                        result[part] = rows
                    else:
                        size = (6, 900) if self.small else (100, 6000)
                        result[part] = await split.compare(self.bench, *size, *engines, peers=peers)
            self.bench.keep("split-nixl" if peers else "split", result)
        return result

    async def replay(self) -> Any:
        """Agentic conversations on two engines; rows in ROWS, or all."""
        rows = os.environ.get("ROWS", "none,offload_pinned,pool,pool_pinned,offload").split(",")
        load, result = conversations.Load.read(self.small), {}
        for row in rows:
            result[row] = await self._replay_row(row, load)
            self.bench.keep("replay", result)
        return result

    async def _replay_row(self, row: str, load: conversations.Load) -> Any:
        kind, _, pinned = row.partition("_")
        kv_bytes = self.kv_bytes if self.small else int(os.environ.get("KV_GIB", "24")) * GIB
        async with contextlib.AsyncExitStack() as stack:
            connector = None
            if kind == "pool":
                pool = await stack.enter_async_context(rig.pool(self.bench, self.pool_bytes))
                connector = pool.connector(**self.extra)
            elif kind == "offload":
                connector = _offloading(self.pool_bytes // 2)
            count = int(os.environ.get("ENGINES", "2"))
            names = [f"replay-{row}-{i}" for i in range(count)]
            longest = min(self.model.max_tokens, load.longest)
            options = self.options(connector, kv_bytes=kv_bytes, max_model_len=longest)
            kinds = dict.fromkeys(names, options)
            gpus = {name: i % self.gpus for i, name in enumerate(names)}
            found = await stack.enter_async_context(rig.engines(self.bench, kinds, gpus))
            return await conversations.run(self.bench, row, load, [*found.values()], bool(pinned))


def _offloading(nbytes: int) -> dict[str, Any]:
    return {
        "kv_connector": "OffloadingConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"cpu_bytes_to_use": nbytes},
    }


async def _main(bench: Bench, arguments: argparse.Namespace) -> int:
    stages = Stages(bench, arguments.gpus, arguments.mover)
    failed = 0
    for name in arguments.stages:
        work: Callable[[], Awaitable[Any]] = getattr(stages, name)
        began = time.monotonic()
        bench.say(f"== {name}")
        try:
            bench.keep(name, await work())
        except Exception as error:  # noqa: BLE001 - the other stages go on
            failed += 1
            bench.say(f"   FAILED: {error!r}")
            traceback.print_exc()
        bench.say(f"== {name} took {time.monotonic() - began:.0f} s")
    return 1 if failed else 0


def _gather(traces: Path, target: Path) -> None:
    """Put what all processes noted into one file, in order of time; lines get the process's id."""
    lines = []
    for path in traces.glob("*.jsonl"):
        for line in path.read_text().splitlines():
            with contextlib.suppress(ValueError):  # the process was killed in the middle of it
                lines.append([*json.loads(line)[:1], int(path.stem), *json.loads(line)[1:]])
    with gzip.open(target, "wt") as file:
        file.writelines(json.dumps(line) + "\n" for line in sorted(lines, key=lambda x: x[:2]))


def main() -> int:
    """Run the stages; 0 if all of them did."""
    parser = argparse.ArgumentParser(description=__doc__)
    choices = ["loading", "pool", "variants", "offload", "mooncake", "equality", "replay", "split"]
    parser.add_argument("stages", nargs="+", choices=choices)
    parser.add_argument("--out", type=Path, default=Path("gpu-results"))
    parser.add_argument("--cpu", action="store_true", help="rehearse on a CPU build of vLLM")
    parser.add_argument("--gpus", type=int, default=1, help="engines of a replay are spread over")
    parser.add_argument("--trace", action="store_true", help="note where requests' time goes")
    parser.add_argument("--mover", default="", help="process or thread; empty: the default")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="moonpool-gpu-") as place:
        traces = Path(place) / "trace"
        if arguments.trace:
            traces.mkdir()
            os.environ["MOONPOOL_TRACE"] = str(traces)
        try:
            return asyncio.run(_main(Bench(arguments.out, Path(place), arguments.cpu), arguments))
        finally:
            if arguments.trace:
                _gather(traces, arguments.out / "trace.jsonl.gz")


if __name__ == "__main__":
    sys.exit(main())
