"""Which requests of a trace are sent, cut to what is wanted of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from moonpool.errors import ConfigError
from moonpool.workload.request import Group, Request
from moonpool.workload.session import Blocks
from moonpool.workload.threads import Threads

REQUESTS_MAX = 1_000_000


@dataclass(frozen=True, slots=True)
class Cut:
    """What is taken of a trace; 0: all of it.

    requests, sessions, turns: so many, the first ones (turns: of each conversation). block_tokens:
    each of the trace's blocks becomes one of so many tokens, and answers shrink as much, so that
    what was shared stays shared. output_tokens: longest answer. context_tokens: requests that are
    longer with their answers are left out. spacing_s: how far apart conversations begin where the
    trace has no common time for them.
    """

    requests: int = 0
    sessions: int = 0
    turns: int = 0
    block_tokens: int = 0
    output_tokens: int = 0
    context_tokens: int = 0
    spacing_s: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class Item:
    """One request to send. ``time_s`` counts from the trace's start, ``think_s`` from the answer
    before (from the request before, where the trace does not say)."""

    session: str
    turn: int
    time_s: float
    think_s: float
    input_tokens: int
    output_tokens: int
    block_tokens: int
    scope: str
    blocks: Blocks


@dataclass(slots=True)
class Selection:
    """Requests in order of time. too_long: how many were left out for their length."""

    items: list[Item] = field(default_factory=list)
    too_long: int = 0

    @property
    def block_tokens(self) -> int:
        """Tokens of a block, after the cut."""
        return self.items[0].block_tokens if self.items else 0

    def sessions(self) -> list[list[Item]]:
        """Return the requests of each conversation, in order."""
        found: defaultdict[str, list[Item]] = defaultdict(list)
        for item in self.items:
            found[item.session].append(item)
        return list(found.values())


def select(groups: Iterable[Group], cut: Cut) -> Selection:
    """Return what the cut takes; raise ConfigError for more than REQUESTS_MAX requests, or none."""
    selector = _Selector(cut)
    for group in groups:
        if not selector.take(group):
            break
    found = selector.found
    if not found.items:
        raise ConfigError(f"trace: none of its requests is sent ({found.too_long} are too long)")
    # Stable: requests of one time stay in the trace's order, those of a conversation in theirs.
    found.items.sort(key=lambda item: item.time_s)
    return found


class _Selector:
    def __init__(self, cut: Cut) -> None:
        self.found = Selection()
        self._cut = cut
        self._turns: dict[str, int] = {}
        self._last_s: dict[str, float] = {}

    def take(self, group: Group) -> bool:
        """Take what is wanted of a group; return whether more may be."""
        cut, shift_s = self._cut, 0.0
        if group.conversation:
            shift_s = len(self._turns) * cut.spacing_s
            if cut.sessions and len(self._turns) >= cut.sessions:
                return False
        for name, request in _named(group):
            if cut.requests and len(self.found.items) >= cut.requests:
                return False
            if self._wanted(name):
                self._add(group, name, request, shift_s)
        return True

    def _wanted(self, name: str) -> bool:
        if name not in self._turns:
            return not self._cut.sessions or len(self._turns) < self._cut.sessions
        return not self._cut.turns or self._turns[name] < self._cut.turns

    def _add(self, group: Group, name: str, request: Request, shift_s: float) -> None:
        cut, turn = self._cut, self._turns.get(name, 0)
        self._turns[name] = turn + 1
        before_s = self._last_s.get(name, request.time_s)
        self._last_s[name] = request.time_s
        think_s = request.time_s - before_s if request.think_s is None else request.think_s
        block_tokens = min(cut.block_tokens or group.block_tokens, group.block_tokens)
        share = block_tokens / group.block_tokens
        room = len(request.blocks) * block_tokens
        inputs = max(1, min(room, round(request.input_tokens * share)))
        outputs = max(1, round(request.output_tokens * share))
        outputs = min(outputs, cut.output_tokens or outputs)
        if cut.context_tokens and inputs + outputs > cut.context_tokens:
            self.found.too_long += 1
            return
        if len(self.found.items) >= REQUESTS_MAX:
            raise ConfigError(f"trace: more than {REQUESTS_MAX:,} requests; allowed: --requests")
        self.found.items.append(
            Item(
                name,
                turn,
                request.time_s + shift_s,
                max(0.0, think_s) if turn else 0.0,
                inputs,
                outputs,
                block_tokens,
                group.scope,
                # Rounded down, a prompt may end before its last block begins.
                request.blocks[: -(-inputs // block_tokens)],
            )
        )


def _named(group: Group) -> Iterator[tuple[str, Request]]:
    threads = Threads(group.block_tokens)
    for request in group.requests:
        if group.conversation:
            yield group.scope, request
        else:
            yield threads.name_of(request), request
