"""Rates of a running engine, measured in less than a minute: for simulating it.

Prompts that nobody knows at several lengths give what computing a token and a pair of tokens takes;
answers of some length, alone and together, give the decode step; the same prompt again on another
engine of the pool gives what loading takes.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from http.client import HTTPConnection, HTTPException
from time import perf_counter
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from moonpool.errors import ConfigError, TransferError
from moonpool.sim.hardware import Hardware

ROUNDS = 3
ANSWER_TOKENS = 32
TOGETHER = 4
TIMEOUT_S = 120.0
VOCABULARY = (10, 250)


@dataclass(frozen=True, slots=True)
class Answer:
    """When an answer's first and last tokens came, in seconds since it was asked for."""

    first_s: float
    last_s: float
    tokens: int

    @property
    def itl_s(self) -> float:
        """Seconds between two tokens, on average."""
        return (self.last_s - self.first_s) / max(1, self.tokens - 1)


class Endpoint:
    """An OpenAI-compatible server that takes prompts as token ids."""

    def __init__(self, url: str) -> None:
        """Raise ConfigError for what is no URL, TransferError where nobody answers."""
        parts = urlsplit(url if "//" in url else f"http://{url}")
        if parts.scheme != "http" or not parts.hostname:
            raise ConfigError(f"endpoint: {url!r} is no base URL; allowed: http://HOST:PORT")
        self._host, self._port = parts.hostname, parts.port or 80
        self._path = parts.path.rstrip("/").removesuffix("/v1")
        models = json.loads(self._get("/v1/models"))["data"]
        self._model = models[0]["id"]

    def _connect(self) -> HTTPConnection:
        return HTTPConnection(self._host, self._port, timeout=TIMEOUT_S)

    def _get(self, path: str) -> bytes:
        connection = self._connect()
        try:
            connection.request("GET", self._path + path)
            return connection.getresponse().read()
        except (OSError, HTTPException) as error:
            raise TransferError(f"{self._host}:{self._port} does not answer: {error}") from None
        finally:
            connection.close()

    def ask(self, prompt: Sequence[int], tokens: int) -> Answer:
        """Ask for exactly so many tokens, greedily."""
        body: dict[str, Any] = {
            "model": self._model,
            "prompt": list(prompt),
            "max_tokens": tokens,
            "min_tokens": tokens,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
        }
        connection = self._connect()
        began = perf_counter()
        try:
            headers = {"Content-Type": "application/json"}
            connection.request("POST", f"{self._path}/v1/completions", json.dumps(body), headers)
            response = connection.getresponse()
            if response.status != 200:
                text = response.read(300).decode("utf-8", "replace")
                raise TransferError(f"{self._host}:{self._port} refused a prompt: {text}")
            times = [
                perf_counter() - began
                for line in response
                if line.startswith(b"data:") and b"[DONE]" not in line
            ]
        except (OSError, HTTPException) as error:
            raise TransferError(f"{self._host}:{self._port} broke off: {error}") from None
        finally:
            connection.close()
        if not times:
            raise TransferError(f"{self._host}:{self._port} answered without a token")
        return Answer(times[0], times[-1], tokens)


@dataclass(frozen=True, slots=True)
class Measured:
    """What was measured: seconds to the first token by the length of new prompts, of prompts that
    the engine has, and of prompts that another engine has given the pool; seconds between tokens
    by (sequences, tokens of context each); how many times as long a new prompt takes while the
    other engine computes one too."""

    cold_s: dict[int, float]
    known_s: dict[int, float]
    pool_s: dict[int, float]
    step_s: dict[tuple[int, int], float]
    beside: float = 1.0

    def plain(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        steps = {f"{count} x {tokens}": value for (count, tokens), value in self.step_s.items()}
        by_length = {"new": self.cold_s, "known": self.known_s, "pool": self.pool_s}
        lengths = {
            name: {str(length): value for length, value in values.items()}
            for name, values in by_length.items()
        }
        return {"ttft_s": lengths, "step_s": steps, "beside": self.beside}


def measure(
    endpoints: Sequence[Endpoint],
    lengths: Sequence[int],
    told: Callable[[str], None] = lambda text: None,
    seed: int = 0,
) -> Measured:
    """Measure the first endpoint; of several, also loads from what the others have put."""
    chance = random.Random(seed)

    def prompt(length: int) -> list[int]:
        return [chance.randint(*VOCABULARY) for _ in range(length)]

    first = endpoints[0]
    first.ask(prompt(min(lengths)), 4)
    cold: dict[int, float] = {}
    known: dict[int, float] = {}
    pool: dict[int, float] = {}
    for length in lengths:
        prompts = [prompt(length) for _ in range(ROUNDS)]
        cold[length] = _median([first.ask(each, 1).first_s for each in prompts])
        known[length] = _median([first.ask(each, 1).first_s for each in prompts])
        if len(endpoints) > 1:
            pool[length] = _median([endpoints[1].ask(each, 1).first_s for each in prompts])
        told(f"{length} tokens: {cold[length]:.3f} s new, {known[length]:.3f} s known")
    steps = {}
    for count, length in ((1, min(lengths)), (1, max(lengths)), (TOGETHER, min(lengths))):
        steps[count, length] = _together(first, [prompt(length) for _ in range(count)])
    beside = 1.0
    if len(endpoints) > 1:
        length = sorted(lengths)[-2]
        asked = [_at_once(endpoints, [prompt(length) for _ in endpoints]) for _ in range(ROUNDS)]
        beside = _median(asked) / cold[length]
        told(f"{length} tokens on all engines at once: {beside:.2f} times as long")
    return Measured(cold, known, pool, steps, beside)


def _at_once(endpoints: Sequence[Endpoint], prompts: list[list[int]]) -> float:
    """Return the mean seconds to the first token of prompts that all engines compute at once."""
    with ThreadPoolExecutor(len(prompts)) as pool:
        answers: list[Answer] = list(pool.map(lambda e, p: e.ask(p, 1), endpoints, prompts))
    return sum(each.first_s for each in answers) / len(answers)


def _together(endpoint: Endpoint, prompts: list[list[int]]) -> float:
    """Return the seconds between tokens of answers that are given at the same time."""
    for each in prompts:
        endpoint.ask(each, 1)  # then none of them is computed beside the others
    with ThreadPoolExecutor(len(prompts)) as pool:
        answers = list(pool.map(lambda each: endpoint.ask(each, ANSWER_TOKENS), prompts))
    return _median([each.itl_s for each in answers])


def _median(values: list[float]) -> float:
    return float(np.median(values))


def fitted(found: Measured, base: Hardware) -> Hardware:
    """Return rates that give what was measured; ``base`` says how large batches are."""
    (one, short), (_, long), (several, _) = found.step_s
    alone, far, together = found.step_s.values()
    kv_read_s = max(0.0, (far - alone) / max(1, long - short))
    sequence_s = max(0.0, (together - alone) / (several - one) - kv_read_s * short)
    step_s = max(1e-4, alone - sequence_s - kv_read_s * short)
    lengths = np.array(list(found.cold_s), dtype=float)
    chunks = np.array([math.ceil(length / base.batch_tokens) for length in found.cold_s])
    rest = np.array(list(found.cold_s.values())) - step_s * chunks
    overhead_s, prefill_s, attention_s = _polynomial(lengths, rest)
    hardware = replace(
        base,
        prefill_s=prefill_s,
        attention_s=attention_s,
        step_s=step_s,
        sequence_s=sequence_s,
        kv_read_s=kv_read_s,
        overhead_s=overhead_s,
        contention=max(0.0, found.beside - 1.0),
    )
    return _with_loads(found, hardware)


def _polynomial(lengths: np.ndarray, seconds: np.ndarray) -> tuple[float, float, float]:
    """Fit seconds = a + b x + c x^2 to relative errors, with nothing below 0."""
    used = [0, 1, 2]
    while True:
        table = np.stack([lengths**power for power in used], axis=1)
        found, *_ = np.linalg.lstsq(table / seconds[:, None], np.ones(len(seconds)), rcond=None)
        if (found >= 0).all() or len(used) == 1:
            values = dict(zip(used, (max(0.0, float(each)) for each in found), strict=True))
            return values.get(0, 0.0), values.get(1, 0.0), values.get(2, 0.0)
        del used[int(found.argmin())]


def _with_loads(found: Measured, hardware: Hardware) -> Hardware:
    """Take what a prompt of the pool's takes beyond one of the engine's own for loading."""
    if not found.pool_s:
        return hardware
    lengths = np.array(list(found.pool_s), dtype=float)
    extra = np.array([found.pool_s[n] - found.known_s[n] for n in found.pool_s])
    slope, latency = np.polyfit(lengths, extra, 1)
    slope = max(float(slope), 1e-9)
    gb_s = hardware.kv_bytes / slope / 1e9
    return replace(hardware, local_gb_s=gb_s, load_latency_s=max(0.0, float(latency)))
