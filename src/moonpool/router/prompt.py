"""What a policy may look at of a request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from moonpool.router.instance import Instance
    from moonpool.router.usage import Usage


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
    the pool has; pool_hosts: the same by the address of the host that has it, where that is
    known. ready_s: when it was its turn. home: the instance that must serve it, where only one
    can; made: takes an answer's first bytes and who gave it. counted: takes what was counted of a
    whole answer, and how many events it had.
    """

    path: str
    body: bytes = field(repr=False)
    arrived_s: float
    ready_s: float = 0.0
    model: str = ""
    session: str = ""
    stream: bool = False
    prompt: Prompt = NO_PROMPT
    pool_tokens: float = 0.0
    pool_hosts: Mapping[str, float] = field(default_factory=dict)
    fields: Any = field(default=None, repr=False)
    home: Instance | None = None
    made: Callable[[bytes, Instance], None] | None = None
    counted: Callable[[Usage | None, int], None] | None = None
