"""An engine's own KV cache: block by block, or a conversation's blocks at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from moonpool.sim.fleet.request import Request
from moonpool.sim.hbm import HbmCache


class Cache(Protocol):
    """Blocks that requests hold, and those kept until space is needed, as in vLLM's block pool.

    stored, removed: blocks that could be found since the beginning, and could not any more.
    """

    blocks: int
    stored: int
    removed: int

    def match(self, request: Request) -> int:
        """Return how many leading blocks of a prompt are there."""

    def take(self, request: Request, hits: int, more: int) -> bool:
        """Hold the first ``hits`` and ``more`` without a name; False if they do not fit."""

    def name(self, request: Request, begin: int, end: int) -> int:
        """Let others find the blocks from ``begin`` to ``end``; return how many are new."""

    def give(self, request: Request, nameless: int) -> None:
        """Hold a request's blocks no longer; named ones are kept while there is room."""


class BlockCache:
    """The simulator's cache of blocks; ``changed`` is told which come and go."""

    def __init__(self, blocks: int, changed: Callable[[bool, list[int]], None]) -> None:
        self.blocks = blocks
        self.stored = self.removed = 0
        self._changed = changed
        self._cache = HbmCache(blocks, self._gone)
        self._named: dict[Request, list[int]] = {}

    def _gone(self, keys: list[int]) -> None:
        self.removed += len(keys)
        self._changed(False, keys)

    def match(self, request: Request) -> int:
        """See Cache."""
        return self._cache.match(request.keys)

    def take(self, request: Request, hits: int, more: int) -> bool:
        """See Cache."""
        named = request.keys[:hits]
        if not self._cache.take(named, more):
            return False
        self._named[request] = named
        return True

    def name(self, request: Request, begin: int, end: int) -> int:
        """See Cache."""
        new = self._cache.name(request.keys[begin:end])
        self._named[request] += new
        self.stored += len(new)
        if new:
            self._changed(True, new)
        return len(new)

    def give(self, request: Request, nameless: int) -> None:
        """See Cache."""
        self._cache.give(self._named.pop(request), nameless)


class _Run:
    """The blocks of a conversation, or of what several begin with, that are there: the first so
    many. held: up to where running requests hold them."""

    __slots__ = ("blocks", "held")

    def __init__(self) -> None:
        self.blocks = 0
        self.held: list[int] = []


class RunCache:
    """The same for prompts that are runs of blocks (``Request.runs``), at a cost that does not grow
    with their length: all blocks of a run are as old as its last use, and its last ones go first.

    That is what happens block by block, save where a prompt is shorter than one before it in the
    same run: what it did not touch would be older.
    """

    def __init__(self, blocks: int) -> None:
        self.blocks = blocks
        self.stored = self.removed = 0
        self._runs: dict[int, _Run] = {}
        self._idle: dict[int, None] = {}
        self._there = self._nameless = 0
        self._held = 0
        self._takers: dict[Request, list[tuple[_Run, int, int]]] = {}

    def match(self, request: Request) -> int:
        """See Cache."""
        found = 0
        for number, blocks in request.runs:
            run = self._runs.get(number)
            there = min(run.blocks, blocks) if run is not None else 0
            found += there
            if there < blocks:
                break
        return found

    def take(self, request: Request, hits: int, more: int) -> bool:
        """See Cache."""
        parts, new_held, left = [], 0, hits
        for number, blocks in request.runs:
            if not left:
                break
            run, part = self._runs[number], min(left, blocks)
            new_held += max(0, part - max(run.held, default=0))
            parts.append((run, number, part))
            left -= part
        if self._held + new_held + self._nameless + more > self.blocks:
            return False
        for run, number, part in parts:
            self._hold(run, number, part)
        self._takers[request] = parts
        self._nameless += more
        self._make_room()
        return True

    def _hold(self, run: _Run, number: int, part: int) -> None:
        self._held += max(0, part - max(run.held, default=0))
        run.held.append(part)
        self._idle.pop(number, None)

    def name(self, request: Request, begin: int, end: int) -> int:
        """See Cache."""
        new, at = 0, 0
        for number, blocks in request.runs:
            if end <= at:
                break
            upto = min(blocks, end - at)
            at += blocks
            if at <= begin:
                continue
            run = self._runs.get(number)
            if run is None:
                run = self._runs[number] = _Run()
            if upto > run.blocks:
                new += upto - run.blocks
                run.blocks = upto
                self._extend(request, run, number, upto)
        self._nameless -= new
        self._there += new
        self.stored += new
        return new

    def _extend(self, request: Request, run: _Run, number: int, upto: int) -> None:
        takers = self._takers[request]
        for place, (taken, _, part) in enumerate(takers):
            if taken is run:
                run.held.remove(part)
                self._held -= max(0, part - max(run.held, default=0))
                takers[place] = (run, number, upto)
                break
        else:
            takers.append((run, number, upto))
        self._hold(run, number, upto)

    def give(self, request: Request, nameless: int) -> None:
        """See Cache."""
        for run, number, part in reversed(self._takers.pop(request)):
            run.held.remove(part)
            self._held -= max(0, part - max(run.held, default=0))
            if not run.held:
                self._idle.pop(number, None)
                self._idle[number] = None
        self._nameless -= nameless

    def _make_room(self) -> None:
        excess = self._there + self._nameless - self.blocks
        while excess > 0 and self._idle:
            number = next(iter(self._idle))
            run = self._runs[number]
            gone = min(excess, run.blocks)
            run.blocks -= gone
            self._there -= gone
            self.removed += gone
            excess -= gone
            if not run.blocks:
                del self._idle[number], self._runs[number]
