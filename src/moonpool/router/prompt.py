"""What a policy may look at of a request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt as the prefix index sees it.

    keys: one integer for every full block, each naming all of the prompt up to its end.
    tokens: how long it is; block_tokens: tokens of a block; both estimates unless ``exact``.
    hashes: the engine's own block hashes, empty where the prompt is known as text only.
    """

    keys: Sequence[int]
    tokens: float
    block_tokens: float
    exact: bool = False
    hashes: Sequence[bytes] = field(default=(), repr=False)


NO_PROMPT = Prompt((), 0.0, 1.0)


@dataclass(slots=True)
class RoutedRequest:
    """A request as policies see it. ``arrived_s`` is a time of the front's clock.

    session: names the conversation, "" where nothing does. pool_tokens: the prompt's head that
    the pool has.
    """

    path: str
    body: bytes = field(repr=False)
    arrived_s: float
    model: str = ""
    session: str = ""
    stream: bool = False
    prompt: Prompt = NO_PROMPT
    pool_tokens: float = 0.0
    fields: Any = field(default=None, repr=False)
