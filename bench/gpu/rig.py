"""What the measurements stand on: a model, engines, a pool, a real Mooncake; all as processes."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.gpu.model import Model

HERE = Path(__file__).parent
GIB = 1 << 30
START_TIMEOUT_S = 300.0
ANSWER_TIMEOUT_S = 240.0
STOP_TIMEOUT_S = 20.0

Part = tuple[int, int]
Answer = dict[str, Any]


@dataclass(slots=True)
class Bench:
    """Where a run keeps its files, and what it found so far."""

    out: Path
    place: Path
    cpu: bool = False
    results: dict[str, Any] = field(default_factory=dict)

    def say(self, *what: object) -> None:
        """Print at once."""
        print(*what, flush=True)  # noqa: T201 - a program's output

    def keep(self, stage: str, result: Any) -> None:
        """Keep a stage's result on disk: a later stage that fails loses nothing."""
        self.results[stage] = result
        (self.out / f"{stage}.json").write_text(json.dumps(result, indent=1))


class Engine:
    """A running engine; ``ask`` from any number of tasks."""

    def __init__(self, name: str, process: asyncio.subprocess.Process) -> None:
        self.name = name
        self.ready_s = 0.0
        self._process = process
        self._waiting: dict[str, asyncio.Future[Answer]] = {}
        self._numbers = itertools.count()
        self._pump = asyncio.create_task(self._read())

    @property
    def pid(self) -> int:
        """The id of the process that drives the engine."""
        return self._process.pid

    async def ready(self) -> None:
        """Wait until it serves."""
        self.ready_s = (await self._answer("ready", START_TIMEOUT_S))["ready_s"]

    async def generate(
        self, prompt: Sequence[Part], out: int = 1, transfer: dict[str, Any] | None = None
    ) -> Answer:
        """Return an answer with ``times`` of the tokens, ``cached``, ``prompt`` and ``tokens``.

        transfer: kv_transfer_params.
        """
        request = {"op": "generate", "prompt": list(prompt), "out": out, "transfer": transfer}
        answer = await self._ask(request)
        answer["ttft"] = answer["times"][0]
        return answer

    async def reset(self) -> bool:
        """Empty the engine's own prefix cache; False if requests or saves were still there."""
        return bool((await self._ask({"op": "reset"}))["reset"])

    async def empties(self, timeout_s: float) -> bool:
        """Reset until it succeeds: saves that still run hold blocks for a moment."""
        deadline = time.monotonic() + timeout_s
        while not await self.reset():
            if time.monotonic() > deadline:
                return False
            await asyncio.sleep(0.05)
            if time.monotonic() > deadline - timeout_s + 1.0:
                await self.generate([(7, 24)])  # a step, in which it hears of what has ended
        return True

    async def empty(self, timeout_s: float = 30.0) -> None:
        """Reset until it succeeds; raise RuntimeError if it does not."""
        if not await self.empties(timeout_s):
            raise RuntimeError(f"{self.name}: the prefix cache cannot be emptied")

    async def stop(self) -> None:
        """End the process and its children."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGTERM)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._process.wait(), 3)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        await self._pump

    async def _ask(self, request: dict[str, Any]) -> Answer:
        number = f"{self.name}-{next(self._numbers)}"
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({**request, "id": number}).encode() + b"\n")
        answer = await self._answer(number, ANSWER_TIMEOUT_S)
        if "error" in answer:
            raise RuntimeError(f"{self.name}: {answer['error']}")
        return answer

    async def _answer(self, number: str, timeout_s: float) -> Answer:
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        if self._pump.done():
            raise RuntimeError(f"{self.name} is not running")
        return await asyncio.wait_for(future, timeout_s)

    async def _read(self) -> None:
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            answer = json.loads(line)
            number = "ready" if "ready_s" in answer else answer["id"]
            future = self._waiting.pop(number, None)
            if future is not None and not future.done():
                future.set_result(answer)
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(RuntimeError(f"{self.name} died; see its log"))


def engine_options(bench: Bench, model: Model, files: Path, kv_bytes: int) -> dict[str, Any]:
    """Return what all engines of a run have in common."""
    common: dict[str, Any] = {
        "model": str(files),
        "load_format": "auto" if model.weights else "dummy",
        "skip_tokenizer_init": True,
        "dtype": model.dtype,
        "max_model_len": model.max_tokens,
        "enforce_eager": True,
        "enable_prefix_caching": True,
        "max_num_batched_tokens": 8192,
        "kv_cache_memory_bytes": kv_bytes,
        "disable_log_stats": True,
        "vocabulary": model.vocabulary,
    }
    if bench.cpu:
        return {**common, "block_size": 32, "max_num_batched_tokens": 4096}
    return {**common, "gpu_memory_utilization": 0.2}


@contextlib.asynccontextmanager
async def engines(
    bench: Bench, kinds: dict[str, dict[str, Any]], gpus: dict[str, int] | None = None
) -> AsyncIterator[dict[str, Engine]]:
    """Run engines side by side. kinds: by name, options of vLLM; ``environment`` is taken out."""
    running: dict[str, Engine] = {}
    try:
        for name, options in kinds.items():
            running[name] = await _start_engine(
                bench, name, dict(options), (gpus or {}).get(name, 0)
            )
        await asyncio.gather(*(engine.ready() for engine in running.values()))
        for engine in running.values():
            bench.say(f"   {engine.name} ready after {engine.ready_s} s")
        yield running
    finally:
        await asyncio.gather(*(engine.stop() for engine in running.values()))
        await asyncio.sleep(0 if bench.cpu else 3)  # the driver gives memory back a little later


async def _start_engine(bench: Bench, name: str, options: dict[str, Any], gpu: int) -> Engine:
    environment = {
        **os.environ,
        "PYTHONHASHSEED": "0",
        "CUDA_VISIBLE_DEVICES": str(gpu),
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_USE_FLASHINFER_SAMPLER": "0",
        **options.pop("environment", {}),
    }
    if "MOONPOOL_TRACE" in os.environ:
        paths = [str(HERE / "traced"), environment.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    log = (bench.out / f"{name}.log").open("w")
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(HERE / "engine.py"),
        json.dumps(options),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=log,
        env=environment,
        start_new_session=True,
        limit=1 << 26,
    )
    return Engine(name, process)


@dataclass(frozen=True, slots=True)
class Pool:
    """A running master and node."""

    master: str
    http: str
    pids: dict[str, int]

    def connector(self, **extra: Any) -> dict[str, Any]:
        """Return the --kv-transfer-config of an engine on this pool."""
        return {
            "kv_connector": "MoonpoolConnector",
            "kv_role": "kv_both",
            "kv_connector_extra_config": {"master": self.master, **extra},
        }


@contextlib.asynccontextmanager
async def pool(bench: Bench, nbytes: int, **more: Any) -> AsyncIterator[Pool]:
    """Run a pool of so many bytes of this host's memory, touched before it is yielded; more:
    settings of the node."""
    with tempfile.TemporaryDirectory(prefix="moonpool-gpu-", dir="/dev/shm") as segments:
        master, told = await _service(bench, "master", {"http_port": 0})
        node = None
        try:
            address = f"127.0.0.1:{told['port']}"
            settings = {"master": address, "size": nbytes, "segment_dir": segments, **more}
            began = time.monotonic()
            node, _ = await _service(bench, "node", settings)
            await _until_touched(Path(segments), nbytes)
            bench.say(
                f"   pool of {nbytes / GIB:.0f} GiB ready after {time.monotonic() - began:.1f} s"
            )
            http = f"http://127.0.0.1:{told['http_port']}"
            yield Pool(address, http, {"master": master.pid, "node": node.pid})
        finally:
            for process in (node, master):
                if process is not None:
                    process.terminate()
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(process.wait(), STOP_TIMEOUT_S)
                    if process.returncode is None:
                        process.kill()


async def _service(
    bench: Bench, role: str, settings: dict[str, Any]
) -> tuple[asyncio.subprocess.Process, dict[str, Any]]:
    ready, config = bench.place / f"{role}.ready", bench.place / f"{role}.json"
    ready.unlink(missing_ok=True)
    base = {"host": "127.0.0.1", "port": 0, "ready_file": str(ready)}
    config.write_text(json.dumps({**base, **settings}))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "moonpool.cli", role, "--config", str(config)),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=(bench.out / f"{role}.log").open("w"),
        stderr=asyncio.subprocess.STDOUT,
    )
    deadline = time.monotonic() + 60
    while not ready.exists():
        if process.returncode is not None or time.monotonic() > deadline:
            raise RuntimeError(f"the {role} did not start; see its log")
        await asyncio.sleep(0.05)
    return process, json.loads(ready.read_text())


async def _until_touched(segments: Path, nbytes: int, timeout_s: float = 120.0) -> None:
    deadline = time.monotonic() + timeout_s
    # The tables of slots are not touched ahead, nor all of a size that is no whole segment.
    while _touched(segments) < 0.97 * nbytes and time.monotonic() < deadline:  # noqa: ASYNC110
        await asyncio.sleep(0.2)


def _touched(segments: Path) -> int:
    return 512 * sum(path.stat().st_blocks for path in segments.glob("**/*.seg"))


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value below which ``share`` of the values lie (nearest rank)."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def median(values: Sequence[float]) -> float:
    """Return the middle value."""
    return percentile(values, 0.5)
