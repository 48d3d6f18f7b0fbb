"""Growing chats: the requests of a benchmark of the router, with what they count in tokens."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

CHARS_PER_TOKEN = 4
SHARED_TOKENS = 1500

Counter = Callable[[list[dict[str, str]]], int]


@dataclass(frozen=True, slots=True)
class Shape:
    """chats: how many go on at a time. first_tokens: length of a chat's first prompt, about.

    grown_tokens: what each turn adds; turns: after so many a new chat takes the place.
    spread: whether chats are at different turns when the load begins, else all begin at once.
    """

    chats: int = 100
    first_tokens: int = 8192
    grown_tokens: int = 256
    turns: int = 20
    spread: bool = True
    answer_tokens: int = 8


@dataclass(frozen=True, slots=True)
class Asking:
    """A request: its whole HTTP body, who it is (``ID/PROMPT_TOKENS``), and whether its chat is
    one that was not there before."""

    body: bytes
    user: str
    first: bool


def source_text() -> str:
    """Return English and code that every Python has, the same wherever its version is."""
    import argparse
    import inspect
    from pydoc_data.topics import topics

    parts = [topics[name] for name in sorted(topics)]
    return "\n".join([*parts, inspect.getsource(argparse)])


class _Chat:
    def __init__(self, name: str, shape: Shape, words: _Words) -> None:
        self.name, self.turn = name, 0
        system = words.shared(SHARED_TOKENS)
        first = words.take(shape.first_tokens - SHARED_TOKENS)
        self.messages = [
            {"role": "system", "content": system},
            {"role": "user", "content": f"{name}\n{first}"},
        ]

    def grow(self, shape: Shape, words: _Words) -> None:
        self.turn += 1
        half = shape.grown_tokens // 2
        self.messages.append({"role": "assistant", "content": words.take(half)})
        self.messages.append({"role": "user", "content": words.take(half)})


class _Words:
    """Pieces of a text, from anywhere in it."""

    def __init__(self, seed: int) -> None:
        self._text = source_text()
        self._random = random.Random(seed)

    def shared(self, tokens: int) -> str:
        return self._text[: tokens * CHARS_PER_TOKEN]

    def take(self, tokens: int) -> str:
        size = tokens * CHARS_PER_TOKEN
        begin = self._random.randrange(len(self._text) - size)
        return self._text[begin : begin + size]


def requests(shape: Shape, seed: int, count: Counter, name: str = "") -> Iterator[Asking]:
    """Yield requests without end, of a chat that is chosen by chance each."""
    words, chance = _Words(seed), random.Random(seed + 1)
    made = 0

    def new() -> _Chat:
        nonlocal made
        made += 1
        return _Chat(f"{name}{seed}.{made}", shape, words)

    chats = [new() for _ in range(shape.chats)]
    seen = {chat.name: False for chat in chats}
    if shape.spread:
        for chat in chats:
            for _ in range(chance.randrange(shape.turns)):
                chat.grow(shape, words)
    while True:
        place = chance.randrange(shape.chats)
        chat = chats[place]
        first = not seen.get(chat.name, False)
        seen[chat.name] = True
        yield _asking(chat, shape, count, first)
        chat.grow(shape, words)
        if chat.turn >= shape.turns:
            del seen[chat.name]
            chats[place] = new()


def _asking(chat: _Chat, shape: Shape, count: Counter, first: bool) -> Asking:
    user = f"{chat.name}.{chat.turn}/{count(chat.messages)}"
    body = {
        "model": "bench",
        "messages": chat.messages,
        "max_tokens": shape.answer_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
        "user": user,
    }
    return Asking(json.dumps(body).encode(), user, first)
