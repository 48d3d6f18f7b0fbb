"""What clients asked for and were told, and whether a pool that keeps its promises can do that.

Times are the simulation's own. Objects are immutable, and the bytes of each attempt to put one
are different from those of any other, so a read says by itself which put it saw.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

NEVER = float("inf")
CALL_S_MAX = 25.0
"""What every call must end within, beside the time for which its own process stood still."""

OK, TAKEN, FULL, UNKNOWN = "ok", "taken", "full", "unknown"


class Violation(AssertionError):
    """The pool did what it must not."""


@dataclass
class Attempt:
    """A put. ``seen`` is when its bytes were first read, or its end acknowledged."""

    number: int
    key: str
    size: int
    invoked: float
    outcome: str = UNKNOWN
    ended: float = NEVER
    seen: float = NEVER

    @property
    def value(self) -> bytes:
        head = f"{self.key}#{self.number}|".encode()
        return (head * (self.size // len(head) + 1))[: self.size]


@dataclass
class Removal:
    """An acknowledged removal. ``until``: when nodes knew of it, if their leader lived."""

    key: str
    invoked: float
    ended: float
    until: float


@dataclass
class KeyHistory:
    """All about one key. ``lost``: when memory or a disk that may have had it was given up."""

    attempts: list[Attempt] = field(default_factory=list)
    removals: list[Removal] = field(default_factory=list)
    taken: list[tuple[float, float]] = field(default_factory=list)
    lost: float = -1.0


def number_of(value: bytes) -> int:
    """Return the number of the attempt that an object's bytes are of."""
    head = bytes(value[:32]).split(b"|")[0]
    try:
        return int(head.split(b"#")[1])
    except (IndexError, ValueError):
        return 0


class History:
    """Everything that clients saw. The checks raise Violation."""

    def __init__(self, may_be_undone: Callable[[Removal, bool], bool]) -> None:
        """may_be_undone: tells whether a removal's leader was lost, at that moment or, if told so,
        at any time since."""
        self.may_be_undone = may_be_undone
        self.keys: dict[str, KeyHistory] = {}
        self.attempts: dict[int, Attempt] = {}
        self.reads = 0

    def of(self, key: str) -> KeyHistory:
        """Return a key's history."""
        found = self.keys.get(key)
        if found is None:
            found = self.keys[key] = KeyHistory()
        return found

    # --- what is noted ------------------------------------------------------------------------

    def put(self, key: str, size: int, now: float) -> Attempt:
        """A put begins."""
        attempt = Attempt(len(self.attempts) + 1, key, size, now)
        self.attempts[attempt.number] = attempt
        self.of(key).attempts.append(attempt)
        return attempt

    def put_ended(self, attempt: Attempt, outcome: str, now: float) -> None:
        """A put was answered."""
        attempt.outcome, attempt.ended = outcome, now
        if outcome == OK:
            attempt.seen = min(attempt.seen, now)
        if outcome in (TAKEN, FULL) and attempt.seen < NEVER:
            raise Violation(f"{attempt.key} #{attempt.number} was read and then not put: {outcome}")

    def put_twice(self, attempt: Attempt, who: str) -> None:
        """A put was done, with nothing amiss: nothing may have been there."""
        before = self.due(attempt.key, attempt.invoked)
        if before is not None:
            raise Violation(f"{who} put {attempt.key} #{attempt.number} over #{before.number}")

    def taken_by_nobody(self, attempt: Attempt, who: str) -> None:
        """A put was refused because the key is taken: there must be one that may have it."""
        others = (each for each in self.of(attempt.key).attempts if each is not attempt)
        if all(each.outcome in (TAKEN, FULL) for each in others):
            raise Violation(f"{who}: {attempt.key} #{attempt.number} was refused for nothing")

    def removed(self, key: str, invoked: float, now: float, until: float) -> None:
        """A removal was acknowledged."""
        self.of(key).removals.append(Removal(key, invoked, now, until))

    def lost(self, key: str, now: float) -> None:
        """An object was evicted, or its memory is gone."""
        self.of(key).lost = now

    def _was_replaced(self, attempt: Attempt, removal: Removal) -> bool:
        """Tell whether a removal may have been of a later put: the older one's bytes may lie in
        evicted space until they are overwritten, and only the leader knows that."""
        later = (
            each
            for each in self.of(attempt.key).attempts
            if each.number > attempt.number and each.invoked < removal.ended
        )
        return any(each.outcome not in (TAKEN, FULL) for each in later)

    def _was_refused(self, attempt: Attempt) -> bool:
        """Tell whether nobody may see a put: one that is refused at its end is written already, and
        only the leader that refused it knows that until its node has heard."""
        if attempt.outcome == TAKEN:
            refusal = Removal(attempt.key, attempt.invoked, attempt.ended, attempt.ended)
            return not self.may_be_undone(refusal, True)
        return attempt.outcome == FULL

    # --- what is checked ----------------------------------------------------------------------

    def read(self, key: str, value: bytes, invoked: float, now: float, who: str) -> Attempt:
        """A read that was invoked then returned these bytes."""
        self.reads += 1
        attempt = self.attempts.get(number_of(value))
        what = f"{who} read {key}"
        if attempt is None or attempt.key != key:
            raise Violation(f"{what}: foreign bytes {bytes(value[:40])!r}")
        if value != attempt.value:
            at = next((i for i, b in enumerate(attempt.value) if value[i : i + 1] != bytes([b])), 0)
            raise Violation(f"{what}: bytes of #{attempt.number} up to {at} only")
        if self._was_refused(attempt):
            raise Violation(f"{what}: #{attempt.number}, which was refused as {attempt.outcome}")
        for removal in self.of(key).removals:
            after = removal.ended < invoked and attempt.seen < removal.invoked
            if after and not self.may_be_undone(removal, self._was_replaced(attempt, removal)):
                raise Violation(
                    f"{what}: #{attempt.number} is back, removed at {removal.ended:.6f}"
                )
        attempt.seen = min(attempt.seen, now)
        return attempt

    def present(self, key: str, invoked: float, who: str) -> None:
        """A lookup that was invoked then found an object of the key."""
        history = self.of(key)
        for attempt in history.attempts:
            if self._was_refused(attempt):
                continue
            gone = (
                removal
                for removal in history.removals
                if removal.ended < invoked and attempt.seen < removal.invoked
            )
            if all(
                self.may_be_undone(removal, self._was_replaced(attempt, removal))
                for removal in gone
            ):
                return
        raise Violation(f"{who} found {key}, which was removed or never put")

    def due(self, key: str, invoked: float) -> Attempt | None:
        """Return a put whose object a read that begins then must find, None if there is none."""
        history = self.of(key)
        for attempt in reversed(history.attempts):
            if attempt.outcome != OK or attempt.ended >= invoked:
                continue
            if history.lost >= attempt.invoked:
                continue
            if any(removal.ended > attempt.invoked for removal in history.removals):
                continue
            return attempt
        return None

    def missed(self, key: str, invoked: float, who: str, why: str) -> None:
        """A read that began then, with nothing amiss, found nothing."""
        attempt = self.due(key, invoked)
        if attempt is not None:
            raise Violation(
                f"{who} missed {key} ({why}), put as #{attempt.number} at {attempt.ended:.6f}"
            )
