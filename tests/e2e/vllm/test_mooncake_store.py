"""vLLM's own MooncakeStoreConnector on a moonpool: two engines that know nothing of moonpool."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from queue import Empty, Queue
from typing import Any

import pytest

from moonpool.demo.model import build_model
from tests.e2e.vllm.conftest import NEW, ROOT, SHAPE
from tests.e2e.vllm.logprobs import difference
from tests.e2e.vllm.servers import OBJECT, prompt
from tests.integration.mooncake_shim import SHIM, MooncakeMaster, shim_environment
from tests.integration.mooncake_wheel import REASON, WHEEL, Cluster, cluster
from tests.integration.processes import eventually

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

SAME = 1e-4
START_S, ANSWER_S = 300.0, 120.0
MARK = "@"
IN_TREE: dict[str, Any] = {
    "kv_connector": "MooncakeStoreConnector",
    "kv_role": "kv_both",
    "kv_load_failure_policy": "recompute",
    "kv_connector_extra_config": {"load_async": True},
}
OURS: dict[str, Any] = {
    "kv_connector": "MoonpoolConnector",
    "kv_role": "kv_both",
    "kv_load_failure_policy": "recompute",
    "kv_connector_extra_config": {
        "engine": "mooncake",
        "object_tokens": OBJECT,
        "lookup_wait_ms": 5000,
    },
}


class Engine:
    """An engine's process."""

    def __init__(
        self, log: Path, model: Path, transfer: dict[str, Any], env: dict[str, str]
    ) -> None:
        self.log = log
        env = env | {"VLLM_CPU_KVCACHE_SPACE": "1"}
        env["PYTHONPATH"] = f"{env['PYTHONPATH']}:{ROOT}"
        self._answers: Queue[Any] = Queue()
        with self.log.open("wb") as out:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "tests.e2e.vllm.mooncake_engine"),
                    *(str(model), json.dumps(transfer)),
                ],
                cwd=ROOT,
                env=env,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=out,
                text=True,
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(MARK):
                self._answers.put(json.loads(line[len(MARK) :]))
            else:
                with self.log.open("a") as log:
                    log.write(line)

    def answer(self, within_s: float = ANSWER_S) -> Any:
        for _ in range(int(within_s)):
            try:
                return self._answers.get(timeout=1.0)
            except Empty:
                assert self._process.poll() is None, self.log.read_text()[-6000:]
        raise AssertionError(f"no answer: {self.log.read_text()[-6000:]}")

    def run(self, *prompts: list[int], tokens: int = 8, forget: bool = False) -> Any:
        said = {"prompts": prompts, "tokens": tokens, "forget": forget}
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(said) + "\n")
        self._process.stdin.flush()
        return self.answer()

    def end(self) -> None:
        with contextlib.suppress(OSError):
            assert self._process.stdin is not None
            self._process.stdin.close()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(10)
        assert self._process.stdout is not None
        self._process.stdout.close()


@pytest.fixture(scope="module")
def engines(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[MooncakeMaster, Engine, Engine]]:
    pytest.importorskip("vllm")
    if not NEW:
        pytest.skip("this vLLM has no MooncakeStoreConnector that stores on a CPU")
    folder = tmp_path_factory.mktemp("mooncake")
    model = build_model(folder, SHAPE)
    with MooncakeMaster(folder, "--default_kv_lease_ttl=500") as master:
        config = folder / "mooncake.json"
        config.write_text(
            json.dumps(
                {
                    "metadata_server": "P2PHANDSHAKE",
                    "master_server_address": master.address,
                    "protocol": "tcp",
                    "mode": "embedded",
                    "global_segment_size": "128MB",
                    "local_buffer_size": "64MB",
                }
            )
        )
        env = shim_environment(MOONCAKE_CONFIG_PATH=str(config))
        with two(folder, model, IN_TREE, env) as (a, b):
            yield master, a, b


@contextlib.contextmanager
def two(
    folder: Path, model: Path, transfer: dict[str, Any], env: dict[str, str]
) -> Iterator[tuple[Engine, Engine]]:
    """Run two engines."""
    both: list[Engine] = []
    try:
        for name in ("a", "b"):
            both.append(Engine(folder / f"{name}.log", model, transfer, env))  # noqa: PERF401
        for each in both:
            assert each.answer(START_S) == "ready"
        yield both[0], both[1]
    finally:
        for each in both:
            each.end()


def gauge(master: MooncakeMaster, name: str) -> int:
    found = re.search(rf"^{name} (\d+)$", master.page("/metrics"), re.MULTILINE)
    assert found is not None
    return int(found[1])


def test_what_one_engine_computed_the_other_loads(
    engines: tuple[MooncakeMaster, Engine, Engine],
) -> None:
    master, a, b = engines
    prompts = [prompt(seed, length) for seed, length in ((1, 300), (2, 500), (3, 97))]
    cold = a.run(*prompts)
    assert [each["cached"] for each in cold] == [0, 0, 0]
    assert gauge(master, "master_key_count") > 0
    hot = b.run(*prompts)
    assert [each["cached"] for each in hot] == [288, 480, 96]
    for before, after in zip(cold, hot, strict=True):
        assert before["tokens"] == after["tokens"]
        assert difference(before, after) < SAME


def test_a_conversation_goes_on_elsewhere(engines: tuple[MooncakeMaster, Engine, Engine]) -> None:
    _, a, b = engines
    turn = prompt(7, 260)
    for at in range(3):
        here, there = (a, b) if at % 2 else (b, a)
        (found,) = here.run(turn)
        if at:
            assert found["cached"] >= 256
        (fresh,) = here.run(turn, forget=True)
        assert fresh["tokens"] == found["tokens"]
        assert difference(fresh, found) < SAME
        (same,) = there.run(turn, forget=True)
        assert same["cached"] >= len(turn) // 32 * 32 - 32
        assert same["tokens"] == found["tokens"]
        turn = turn + found["tokens"] + prompt(100 + at, 64)


def test_each_engine_lent_its_segment(engines: tuple[MooncakeMaster, Engine, Engine]) -> None:
    master, _, _ = engines
    assert len(master.page("/get_all_segments").split()) == 2
    assert gauge(master, "master_total_capacity_bytes") >= 2 * (120 << 20)
    assert SHIM.is_dir()


@pytest.mark.skipif(WHEEL is None, reason=REASON)
def test_our_connector_on_a_mooncake_cluster(tmp_path: Path) -> None:
    """The other way round: moonpool's connector, and a real mooncake_master with its segment."""
    pytest.importorskip("vllm")
    model = build_model(tmp_path, SHAPE)
    with cluster(tmp_path) as mooncake, two(tmp_path, model, OURS, mooncake.environment()) as both:
        a, b = both
        prompts = [prompt(seed, length) for seed, length in ((1, 300), (2, 500))]
        a.run(prompt(9, 70))  # the connector opens the pool in the background
        cold = a.run(*prompts)
        assert [each["cached"] for each in cold] == [0, 0]

        def shared() -> bool:
            hot = b.run(*prompts, forget=True)
            assert [each["tokens"] for each in hot] == [each["tokens"] for each in cold]
            assert all(difference(*each) < SAME for each in zip(cold, hot, strict=True))
            return [each["cached"] for each in hot] == [288, 480]

        eventually("what was computed is shared", shared, 60)


@pytest.mark.skipif(WHEEL is None, reason=REASON)
def test_the_demo_on_a_mooncake_cluster(tmp_path: Path) -> None:
    pytest.importorskip("vllm")
    file = tmp_path / "demo.json"
    with Cluster(tmp_path, 1 << 30) as mooncake:
        options = "--quick", "--conversations", "2", "--turns", "2", "--json", str(file)
        command = "-m", "moonpool.cli", "demo", *options, "--mooncake", mooncake.address
        done = mooncake.run(*command, timeout_s=500)
    assert done.returncode == 0, done.stdout.decode()[-3000:] + done.stderr.decode()[-3000:]
    found = json.loads(file.read_text())
    assert found["outputs_identical"] + found["near_ties"] == found["requests"]
    assert found["pool"]["errors"] == 0
    assert found["pool"]["pool_hit_rate"] > 0
