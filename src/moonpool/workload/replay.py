"""Replay conversations against an OpenAI-compatible endpoint, in closed loop.

Each session sends its next turn only after the answer to the last one and a pause. Prompts are
token ids, answers are greedy, of fixed length, and come with the logprobs of the two best
candidates at each place, so that two runs can be compared token by token.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp
import msgspec

from moonpool.workload.ideal import IdealCache
from moonpool.workload.session import PromptBuilder, Session

TOKEN_PREFIX = "token_id:"
ERROR_CHARACTERS_MAX = 300

TurnKey = tuple[str, int]
"""A session's name and the number of a turn in it."""


@dataclass(frozen=True, slots=True)
class Choice:
    """One token of an answer and its best rival, with natural logarithms of probabilities."""

    token: int
    logprob: float
    rival: int
    rival_logprob: float


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of one turn. Times in seconds; ``error`` is empty where it was answered.

    ``could_hit_tokens`` is what a cache shared by all that forgets nothing would have held.
    ``token_s`` is when each token came, from the request on; those of one event came together.
    """

    session: str
    turn: int
    prompt_tokens: int
    could_hit_tokens: int
    cached_tokens: int = 0
    choices: tuple[Choice, ...] = ()
    ttft_s: float = 0.0
    e2e_s: float = 0.0
    error: str = ""
    token_s: tuple[float, ...] = ()

    @property
    def key(self) -> TurnKey:
        """What names this turn in every run of the same workload."""
        return self.session, self.turn

    @property
    def tokens(self) -> list[int]:
        """The token ids of the answer."""
        return [choice.token for choice in self.choices]


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """How to replay. ``vocabulary``: prompt tokens are drawn from [0, vocabulary).
    ``cache_salt``: caches share nothing between requests with different ones."""

    model: str
    vocabulary: int
    block_tokens: int = 32
    concurrency: int = 16
    start_spacing_s: float = 0.25
    request_timeout_s: float = 300.0
    seed: int = 0
    cache_salt: str = ""


@dataclass(frozen=True, slots=True)
class Run:
    """All answers of a replay and how long it took from the first request to the last answer."""

    answers: tuple[Answer, ...]
    wall_s: float


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    prompt_tokens_details: _Details | None = None


class _Logprobs(msgspec.Struct):
    tokens: list[str] = []
    token_logprobs: list[float | None] = []
    top_logprobs: list[dict[str, float] | None] = []


class _StreamChoice(msgspec.Struct):
    logprobs: _Logprobs | None = None


class _Chunk(msgspec.Struct):
    choices: list[_StreamChoice] = []
    usage: _Usage | None = None
    error: Any = None


_CHUNK = msgspec.json.Decoder(_Chunk)


class ReplayError(Exception):
    """The endpoint's answer is not what was asked for."""


async def replay(
    url: str,
    sessions: Sequence[Session],
    options: ReplayOptions,
    *,
    forced: Mapping[TurnKey, list[int]] | None = None,
    on_answer: Callable[[Answer], None] = lambda answer: None,
) -> Run:
    """Replay all sessions and return their answers, in order of completion.

    With ``forced`` the answers that enter a conversation's history are those given there, not
    those just received, so that a second run sends the same prompts. A turn that fails ends its
    session.
    """
    driver = _Driver(url, options, forced, on_answer)
    began = time.perf_counter()
    timeout = aiohttp.ClientTimeout(total=options.request_timeout_s)
    connector = aiohttp.TCPConnector(limit=options.concurrency)
    async with (
        aiohttp.ClientSession(timeout=timeout, connector=connector) as http,
        asyncio.TaskGroup() as group,
    ):
        for place, session in enumerate(sessions):
            group.create_task(driver.run_session(http, place, session))
    return Run(tuple(driver.answers), time.perf_counter() - began)


class _Driver:
    def __init__(
        self,
        url: str,
        options: ReplayOptions,
        forced: Mapping[TurnKey, list[int]] | None,
        on_answer: Callable[[Answer], None],
    ) -> None:
        self.answers: list[Answer] = []
        self._url = f"{url}/v1/completions"
        self._options = options
        self._forced = forced
        self._on_answer = on_answer
        self._ideal = IdealCache(options.block_tokens)
        self._places = asyncio.Semaphore(options.concurrency)

    async def run_session(self, http: aiohttp.ClientSession, place: int, session: Session) -> None:
        async with self._places:
            if place < self._options.concurrency:
                await asyncio.sleep(place * self._options.start_spacing_s)
            builder = PromptBuilder(session, self._options.vocabulary)
            history: list[int] = []
            for index, turn in enumerate(session.turns):
                await asyncio.sleep(turn.gap_s)
                prompt = builder.prompt(index, history)
                answer = await self._ask(http, (session.name, index), prompt, turn.output_tokens)
                self.answers.append(answer)
                self._on_answer(answer)
                if answer.error:
                    return
                tokens = answer.tokens
                self._ideal.add(prompt + tokens)
                history = prompt + (self._forced or {}).get(answer.key, tokens)

    async def _ask(
        self, http: aiohttp.ClientSession, key: TurnKey, prompt: list[int], output_tokens: int
    ) -> Answer:
        could_hit = self._ideal.could_hit(prompt)
        self._ideal.add(prompt)
        reader = _StreamReader()
        began = time.perf_counter()
        try:
            async with http.post(self._url, json=self._body(prompt, output_tokens)) as response:
                if response.status != 200:
                    text = (await response.text())[:ERROR_CHARACTERS_MAX]
                    raise ReplayError(f"HTTP {response.status}: {text}")
                async for line in response.content:
                    reader.feed(line)
            reader.check(len(prompt), output_tokens)
        except (aiohttp.ClientError, TimeoutError, ReplayError, ValueError) as error:
            reason = f"{type(error).__name__}: {error}"
            return Answer(*key, len(prompt), could_hit, error=reason[:ERROR_CHARACTERS_MAX])
        return Answer(
            *key,
            len(prompt),
            could_hit,
            reader.cached_tokens,
            tuple(reader.choices),
            reader.token_at[0] - began,
            time.perf_counter() - began,
            token_s=tuple(at - began for at in reader.token_at),
        )

    def _body(self, prompt: list[int], output_tokens: int) -> dict[str, Any]:
        return {
            "model": self._options.model,
            "prompt": prompt,
            "max_tokens": output_tokens,
            "ignore_eos": True,
            "temperature": 0.0,
            "seed": self._options.seed,
            "logprobs": 2,
            "return_tokens_as_token_ids": True,
            "stream": True,
            "stream_options": {"include_usage": True},
            **({"cache_salt": self._options.cache_salt} if self._options.cache_salt else {}),
        }


class _StreamReader:
    """Collects the server-sent events of one completion."""

    def __init__(self) -> None:
        self.choices: list[Choice] = []
        self.token_at: list[float] = []
        self.cached_tokens = 0
        self.prompt_tokens = 0
        self.done = False

    def feed(self, line: bytes) -> None:
        if not line.startswith(b"data:"):
            return
        data = line[5:].strip()
        if data == b"[DONE]":
            self.done = True
            return
        chunk = _CHUNK.decode(data)
        if chunk.error is not None:
            raise ReplayError(str(chunk.error))
        for choice in chunk.choices:
            if choice.logprobs is not None:
                self.choices.extend(_choices(choice.logprobs))
        new = len(self.choices) - len(self.token_at)
        if new:
            self.token_at += [time.perf_counter()] * new
        if chunk.usage is not None:
            self.prompt_tokens = chunk.usage.prompt_tokens
            details = chunk.usage.prompt_tokens_details
            self.cached_tokens = (details.cached_tokens or 0) if details else 0

    def check(self, prompt_tokens: int, output_tokens: int) -> None:
        if not self.done or len(self.choices) != output_tokens:
            raise ReplayError(f"{len(self.choices)} of {output_tokens} tokens, then the end")
        if self.prompt_tokens != prompt_tokens:
            raise ReplayError(f"sent {prompt_tokens} tokens, {self.prompt_tokens} were counted")


def _choices(logprobs: _Logprobs) -> list[Choice]:
    choices: list[Choice] = []
    for name, logprob, top in zip(
        logprobs.tokens, logprobs.token_logprobs, logprobs.top_logprobs, strict=True
    ):
        rivals = {other: value for other, value in (top or {}).items() if other != name}
        rival = max(rivals, key=rivals.__getitem__, default="")
        choices.append(
            Choice(
                _token_id(name),
                logprob if logprob is not None else 0.0,
                _token_id(rival) if rival else -1,
                rivals[rival] if rival else float("-inf"),
            )
        )
    return choices


def _token_id(name: str) -> int:
    if not name.startswith(TOKEN_PREFIX):
        raise ReplayError(f"the endpoint names tokens by text ({name!r}), not by id")
    return int(name.removeprefix(TOKEN_PREFIX))
