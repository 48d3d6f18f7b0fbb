"""Following one engine's KV events: what they do to the prefix index. No sockets here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from moonpool.router.events import Cleared, Numbering, Removed, Stored, Verdict, read_batch
from moonpool.router.index import PrefixIndex
from moonpool.router.instance import Instance

# So many answers without any event: the stream is taken for dead.
SILENT_ANSWERS = 32
CHECKS_MAX = 64

# Whether the router's own hash of these tokens, in blocks of so many, is this key; None: unknown.
Agrees = Callable[[Sequence[int], int, int], bool | None]


@dataclass(slots=True)
class Counts:
    """What happened to a stream of events so far."""

    batches: int = 0
    gaps: int = 0
    replayed: int = 0
    lost: int = 0
    restarts: int = 0
    garbage: int = 0
    agreeing: int = 0
    differing: int = 0


class Follower:
    """Applies batches in order. ``take`` says when a replay is due; until it has come, nothing is
    applied. What no replay brings back is counted, and the index of the engine emptied: a block
    that was lost unseen must not attract requests."""

    def __init__(self, instance: Instance, index: PrefixIndex, agrees: Agrees | None) -> None:
        self.counts = Counts()
        self._instance, self._index, self._agrees = instance, index, agrees
        self._numbering = Numbering()
        self._answers = instance.answers

    @property
    def alive(self) -> bool:
        """Whether events come while the engine answers."""
        quiet = self._instance.answers - self._answers
        return self.counts.batches > 0 and quiet < SILENT_ANSWERS

    def replay_from(self) -> int:
        """Return the first number that is missing."""
        return self._numbering.expected

    def take(self, number: int, payload: bytes) -> bool:
        """Take a batch that was published; return False if a replay is due before it."""
        self._answers = self._instance.answers
        verdict = self._numbering.take(number)
        if verdict is Verdict.NEXT:
            self._apply(payload)
        elif verdict is Verdict.RESTART:
            self.counts.restarts += 1
            self._index.clear(self._instance.mark)
            return self._begin_again(number, payload)
        elif verdict is Verdict.GAP:
            self.counts.gaps += 1
            return False
        return True

    def replayed(self, number: int, payload: bytes) -> None:
        """Take a batch of a replay."""
        lost = self._numbering.replayed(number)
        if lost >= 0:
            self._note_lost(lost)
            self.counts.replayed += 1
            self._apply(payload)

    def resume(self, number: int, payload: bytes) -> None:
        """Go on after a replay, however much of it came, with the batch that showed the gap."""
        self.replayed(number, payload)

    def _begin_again(self, number: int, payload: bytes) -> bool:
        if number:
            return False
        self._numbering.replayed(0)
        self._apply(payload)
        return True

    def _note_lost(self, lost: int) -> None:
        # What came before the first batch is no loss: an engine is taken to be empty then.
        if lost and self.counts.batches:
            self.counts.lost += lost
            self._index.clear(self._instance.mark)

    def _apply(self, payload: bytes) -> None:
        self.counts.batches += 1
        mark, index = self._instance.mark, self._index
        try:
            events = read_batch(payload)
        except ValueError:
            self.counts.garbage += 1
            return
        for event in events:
            if isinstance(event, Stored):
                self._compare(event)
                index.add(mark, event.keys, self._instance.facts.blocks)
            elif isinstance(event, Removed):
                index.remove(mark, event.keys)
            elif isinstance(event, Cleared):
                index.clear(mark)

    def _compare(self, event: Stored) -> None:
        """See whether the engine hashes as the router does, by blocks that begin a prompt."""
        counts = self.counts
        if self._agrees is None or event.parent is not None or not event.plain:
            return
        if not event.tokens or counts.agreeing + counts.differing >= CHECKS_MAX:
            return
        same = self._agrees(event.tokens[: event.block_tokens], event.block_tokens, event.keys[0])
        if same is not None:
            counts.agreeing += same
            counts.differing += not same
