"""Which replica of an object is read first: one in this host's memory, else where least is being
read by this client."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import msgspec

from moonpool.core.messages import Located, Slot


class Choice:
    """Bytes that are being read from each segment; may be used from several threads."""

    def __init__(self, turn: int = 0) -> None:
        """turn: where to begin among replicas that are alike; clients differ in it."""
        self._lock = threading.Lock()
        self._reading: Counter[int] = Counter()
        self._turns = itertools.count(turn)

    @contextmanager
    def reading(
        self, found: Sequence[Located], is_near: Callable[[int], bool]
    ) -> Iterator[Sequence[Located]]:
        """Yield the same locations, with the slots in the order in which they are to be read, and
        count the bytes of the first ones for the length of the block."""
        taken: Counter[int] = Counter()
        try:
            yield self._ordered(found, is_near, taken)
        finally:
            if taken:
                with self._lock:
                    self._reading -= taken

    def _ordered(
        self, found: Sequence[Located], is_near: Callable[[int], bool], taken: Counter[int]
    ) -> Sequence[Located]:
        if all(len(where.slots) < 2 for where in found):
            return found
        near: dict[int, bool] = {}
        ordered: list[Located] = []
        with self._lock:
            turn, reading = next(self._turns), self._reading

            def rank(slot: Slot) -> tuple[bool, int]:
                if slot.segment not in near:
                    near[slot.segment] = is_near(slot.segment)
                return not near[slot.segment], reading[slot.segment]

            for i, where in enumerate(found):
                if len(where.slots) < 2:
                    ordered.append(where)
                    continue
                at = (turn + i) % len(where.slots)
                slots = sorted(where.slots[at:] + where.slots[:at], key=rank)
                first = slots[0].segment
                reading[first] += where.size
                taken[first] += where.size
                ordered.append(msgspec.structs.replace(where, slots=slots))
        return ordered
