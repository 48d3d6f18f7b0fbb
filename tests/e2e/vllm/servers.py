"""Real ``vllm serve`` processes below one pool, and requests to them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from moonpool.demo import engine
from moonpool.demo.place import free_ports
from tests.integration.processes import environment

BLOCK, OBJECT = 32, 64
START_S, ANSWER_S = 240.0, 120.0
LOGPROBS = 5
FEW_CORES = Path(__file__).parent / "few_cores"
ENVIRONMENT = {**engine.ENVIRONMENT, "UCX_LOG_LEVEL": "error"}


def prompt(seed: int, length: int) -> list[int]:
    """Return random printable bytes as tokens."""
    return [int(t) for t in np.random.default_rng(seed).integers(32, 127, length)]


class Server:
    """An engine with an OpenAI-compatible front; started with ``start``, ended with ``end``."""

    def __init__(
        self, name: str, model: Path, folder: Path, transfer: dict[str, Any], master: str
    ) -> None:
        self.name, self._model, self._transfer = name, model, transfer
        self.port, self.side_channel, self.bootstrap = free_ports(3)
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = folder / f"{name}.log"
        self._environment = environment() | ENVIRONMENT
        self._environment |= {
            "PYTHONPATH": os.pathsep.join([str(FEW_CORES), *_path()]),
            "MOONPOOL_MASTER": master,
            "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1",
            "VLLM_NIXL_SIDE_CHANNEL_PORT": str(self.side_channel),
            "VLLM_MOONCAKE_BOOTSTRAP_PORT": str(self.bootstrap),
        }
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The API server's process, the leader of a session of its own."""
        assert self._process is not None
        return self._process.pid

    def spawn(self, *options: str, **variables: str) -> Self:
        """Start it; ``ready`` waits until it serves."""
        command = [
            *(sys.executable, "-m", "vllm.entrypoints.openai.api_server"),
            *("--model", str(self._model), "--served-model-name", "tiny"),
            *("--host", "127.0.0.1", "--port", str(self.port)),
            *("--dtype", "float32", "--block-size", str(BLOCK), "--max-model-len", "1024"),
            *("--max-num-seqs", "8", "--max-num-batched-tokens", "256"),
            *("--kv-cache-memory-bytes", str(64 << 20), "--enforce-eager", "--seed", "0"),
            *("--enable-prompt-tokens-details", "--uvicorn-log-level", "warning"),
            *options,
        ]
        if self._transfer:
            command += ["--kv-transfer-config", json.dumps(self._transfer)]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment | variables,
                start_new_session=True,
            )
        return self

    def ready(self) -> Self:
        """Wait until it serves."""
        deadline = time.monotonic() + START_S
        while not self.serves():
            assert self._process is not None
            assert self._process.poll() is None, self.text()[-6000:]
            assert time.monotonic() < deadline, self.text()[-6000:]
            time.sleep(0.2)
        return self

    def serves(self) -> bool:
        """Whether it answers its health check."""
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=5) as response:
                return bool(response.status == 200)
        except OSError:
            return False

    def complete(self, prompt: list[int], tokens: int = 4, **extra: Any) -> dict[str, Any]:
        """Return a completion: its text's tokens with logprobs, usage, kv_transfer_params."""
        status, body = self.post(prompt, tokens, **extra)
        assert status == 200, body
        return read(body)

    def post(
        self,
        prompt: list[int],
        tokens: int = 4,
        timeout_s: float = ANSWER_S,
        url: str | None = None,
        **extra: Any,
    ) -> tuple[int, Any]:
        """Return the status and the body of a completion request, sent to ``url`` if given."""
        body = {
            "model": "tiny",
            "prompt": prompt,
            "max_tokens": tokens,
            "temperature": 0,
            "logprobs": LOGPROBS,
            "ignore_eos": True,
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,
            **extra,
        }
        request = urllib.request.Request(
            f"{url or self.url}/v1/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=timeout_s) as response:
                return response.status, json.load(response)
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode(errors="replace")

    def metric(self, name: str) -> float:
        """Return the sum of a metric's samples."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=30) as response:
            page = response.read().decode()
        lines = [line for line in page.splitlines() if line.startswith((f"{name}{{", f"{name} "))]
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines)

    def text(self) -> str:
        """What it has logged."""
        return self.log.read_text(errors="replace")

    def kill(self) -> None:
        """End the whole engine without any warning."""
        if self._process is not None:
            os.killpg(self.pid, signal.SIGKILL)
            self._process.wait(30)

    def end(self) -> None:
        """Ask it to end; kill what is left of it."""
        if self._process is None:
            return
        self._process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(30)
        with contextlib.suppress(ProcessLookupError):
            self.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self.end()


def _path() -> list[str]:
    return [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]


def read(body: dict[str, Any]) -> dict[str, Any]:
    """Return a completion in the form that ``logprobs.difference`` compares."""
    choice = body["choices"][0]
    details = body["usage"].get("prompt_tokens_details") or {}
    return {
        "cached": details.get("cached_tokens", 0),
        "tokens": choice["token_ids"],
        "logprobs": [
            sorted((int(name.rsplit(":", 1)[1]), one) for name, one in step.items())
            for step in choice["logprobs"]["top_logprobs"]
        ],
        "params": body.get("kv_transfer_params"),
    }
