"""Conversations of token ids through an OpenAI-compatible server, whole and streamed."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from tests.e2e.vllm.servers import LOGPROBS, prompt, read

ANSWER_TOKENS = 40
WAIT_S = 300.0


class Broken(Exception):
    """A stream that ended before its end; ``begun``: whether any of it had come."""

    def __init__(self, text: str, *, begun: bool) -> None:
        super().__init__(text)
        self.begun = begun


@dataclass
class Conversation:
    """What has been said so far, and what a plain engine answered to each turn."""

    number: int
    expected: list[dict[str, Any]] = field(default_factory=list)
    prompts: list[list[int]] = field(default_factory=list)

    def next(self, turn: int) -> list[int]:
        """Return the prompt of a turn; those before must have been answered."""
        while len(self.prompts) <= turn:
            at = len(self.prompts)
            new = prompt(1000 * self.number + at, (150 if at == 0 else 60) + 7 * self.number % 120)
            before = [*self.prompts[-1], *self.expected[at - 1]["tokens"]] if at else []
            self.prompts.append([*before, *new])
        return self.prompts[turn]


async def ask(
    http: aiohttp.ClientSession, url: str, tokens: list[int], *, stream: bool
) -> dict[str, Any]:
    """Return the answer in the form that ``logprobs.difference`` compares; raise Broken."""
    body: dict[str, Any] = {
        "model": "tiny",
        "prompt": tokens,
        "max_tokens": ANSWER_TOKENS,
        "temperature": 0,
        "logprobs": LOGPROBS,
        "ignore_eos": True,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
    }
    if stream:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    async with asyncio.timeout(WAIT_S), http.post(f"{url}/v1/completions", json=body) as response:
        if not stream or response.status != 200:
            text = await response.text()
            if response.status != 200:
                raise Broken(f"HTTP {response.status}: {text}", begun=False)
            return read(json.loads(text))
        assert response.content_type == "text/event-stream"
        return read(_joined(await _events(response)))


async def _events(response: aiohttp.ClientResponse) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    try:
        async for line in response.content:
            if line.startswith(b"data: {"):
                event = json.loads(line.removeprefix(b"data: "))
                if "error" in event:
                    raise Broken(str(event), begun=bool(found))
                found.append(event)
            elif line.startswith(b"data: [DONE]"):
                return found
    except aiohttp.ClientError as error:
        raise Broken(str(error), begun=bool(found)) from error
    raise Broken("no end", begun=bool(found))


def _joined(events: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a stream as if it had been one answer."""
    choices = [each["choices"][0] for each in events if each.get("choices")]
    steps = [step for each in choices for step in (each["logprobs"] or {}).get("top_logprobs", [])]
    return {
        "choices": [
            {
                "token_ids": [t for each in choices for t in each.get("token_ids") or []],
                "logprobs": {"top_logprobs": steps},
            }
        ],
        "usage": events[-1]["usage"],
    }


CHAT: dict[str, Any] = {
    "model": "tiny",
    "messages": [
        {"role": "system", "content": "Answer in one sentence, and say what you are not sure of."},
        {"role": "user", "content": "Which of the two lakes is the deeper one? " * 8},
    ],
    "max_tokens": 12,
    "temperature": 1,
    "seed": 7,
    "logprobs": True,
    "top_logprobs": 3,
    "n": 2,
}


async def chat(http: aiohttp.ClientSession, url: str, salt: str, *, stream: bool) -> list[Any]:
    """Return the texts and logprobs of two answers; the salt hides all that was computed before."""
    body = {**CHAT, "cache_salt": salt, "stream": stream}
    address = f"{url}/v1/chat/completions"
    async with asyncio.timeout(WAIT_S), http.post(address, json=body) as response:
        assert response.status == 200, await response.text()
        events = await _events(response) if stream else [await response.json()]
    found: list[Any] = [["", []], ["", []]]
    for choice in (choice for event in events for choice in event["choices"]):
        said = choice.get("delta") or choice.get("message") or {}
        found[choice["index"]][0] += said.get("content") or ""
        steps = (choice.get("logprobs") or {}).get("content") or []
        found[choice["index"]][1] += [step["logprob"] for step in steps]
    return found


async def message(http: aiohttp.ClientSession, url: str) -> tuple[str, int, int]:
    """Return an answer of Anthropic's API, and how many tokens its prompt and what of it was
    cached have."""
    body = {key: CHAT[key] for key in ("model", "max_tokens")} | {"temperature": 0}
    body["messages"] = [{"role": "user", "content": "The other lake, then? " * 12}]
    async with asyncio.timeout(WAIT_S), http.post(f"{url}/v1/messages", json=body) as response:
        assert response.status == 200, await response.text()
        answer = await response.json()
    usage = answer["usage"]
    text = "".join(part.get("text", "") for part in answer["content"])
    read, created = (usage.get(f"cache_{kind}_input_tokens") or 0 for kind in ("read", "creation"))
    return text, usage["input_tokens"] + created + read, read
