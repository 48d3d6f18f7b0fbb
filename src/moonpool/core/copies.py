"""Copies of objects beyond the first: how many are wanted, which there are to be, which are made.

How many copies an object's put asked for has to outlive the master, and costs no memory: it is in
the generations of its slots. The last sixteen of every 16,384 generations are tags, which ordinary
puts pass over.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from moonpool.core.heat import Heat
from moonpool.core.index import Object

WANTED_MAX: Final = 8
CHARGE_MIN: Final = 65_536
_MASK: Final = (1 << 14) - 1
_PLAIN: Final = _MASK + 1 - 2 * WANTED_MAX
"""From here on the low bits are a tag: wanted copies, and whether this one is beyond them."""
REPAIR, DRAIN, HOT, ASKED = "repair", "drain", "hot", "asked"
"""Why a copy is made."""


def next_generation(last: int, wanted: int = 1, *, spare: bool = False) -> int:
    """Return the next generation that says how many copies are wanted."""
    following = last + 1
    low = following & _MASK
    if wanted == 1 and not spare:
        return following if low < _PLAIN else (following | _MASK) + 1
    tag = _PLAIN + min(wanted, WANTED_MAX) - 1 + WANTED_MAX * spare
    return following + (tag - low) % (_MASK + 1)


def is_tagged(generation: int) -> bool:
    """Tell whether a generation says more than that one copy is wanted."""
    return generation & _MASK >= _PLAIN


def are_tagged(generations: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
    """Tell the same of many, shape (n,)."""
    return np.asarray(generations & np.uint64(_MASK) >= np.uint64(_PLAIN))


def wanted_of(generation: int) -> int:
    """Return how many copies are wanted of an object that has this generation."""
    low = generation & _MASK
    return 1 if low < _PLAIN else (low - _PLAIN) % WANTED_MAX + 1


def is_spare(generation: int) -> bool:
    """Tell whether a slot of this generation is a copy beyond those wanted."""
    return generation & _MASK >= _PLAIN + WANTED_MAX


class Copy(msgspec.Struct, eq=False):
    """A copy on its way: of what, from which segment's node to which segment, and why."""

    generation: int
    object: Object
    source: str
    target: str
    nbytes: int
    started: float
    why: str

    @property
    def charge(self) -> int:
        """What it counts among the bytes under way: many small ones are much, too."""
        return max(self.nbytes, CHARGE_MIN)


class Drain(msgspec.Struct, eq=False):
    """The drain of a node: since when, and how far its present pass over the node's objects is.

    ``segment`` and ``slab`` are where the pass goes on, ``rests_until`` when the next begins;
    ``stuck`` counts the objects of the last whole pass that have no room elsewhere; ``shelved`` are
    keys on its disk that are to be looked at, of as many as were ``found`` there after so many
    ``tries``; ``disk_done`` is set when no more can go.
    """

    node: str
    since: float
    segment: int = 0
    slab: int = 0
    met: int = 0
    stuck: int = 0
    rests_until: float = 0.0
    shelved: list[bytes] = []
    found: int = -1
    tries: int = 0
    disk_done: bool = False


class Copies:
    """What is under way and what is to be done. Nodes are called by their sessions' peers."""

    def __init__(self) -> None:
        self.under_way: dict[int, Copy] = {}
        self.busy: dict[Object, Copy] = {}
        self.bytes_of: Counter[str] = Counter()
        """Bytes on their way to and from each node."""
        self.tagged = False
        """Whether objects are still to be made that want more than one copy; and such:"""
        self.newcomers: list[Object] = []
        self.thin: dict[Object, float] = {}
        """Objects on fewer hosts than they want, and when to see to it."""
        self.spares: dict[Object, None] = {}
        """Objects with copies beyond those wanted."""
        self.heat = Heat()
        self.hot: dict[Object, int] = {}
        """Objects that are read much, and how many copies more they are to have."""
        self.retiring: dict[tuple[Object, int], float] = {}
        """Places to be given up once nobody reads there: (object, segment), and when at last."""
        self.moving: dict[tuple[Object, int], None] = {}
        """Of the places that are retiring, those that somebody asked to be given up."""
        self.parked: dict[Object, None] = {}
        """What would be evicted if that made room: it is on nodes only that are being drained."""
        self.drains: dict[str, Drain] = {}
        self.said: dict[str, bool] = {}
        """The last word on each node's drain in this master's life."""
        self.credit = 0.0
        """Bytes that may be asked for now; below 0 while those of a copy are paid back."""
        self.credited_at = 0.0

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do."""
        to_do = self.thin or self.drains or self.retiring or self.under_way or self.newcomers
        return not (to_do or self.spares or self.hot or self.parked)

    def begin(self, copy: Copy) -> None:
        """Take note of a copy that is asked for."""
        self.under_way[copy.generation] = copy
        self.busy[copy.object] = copy
        self.bytes_of[copy.source] += copy.charge
        self.bytes_of[copy.target] += copy.charge
        self.credit -= copy.nbytes

    def end(self, generation: int) -> Copy | None:
        """Forget a copy; return it if it was under way."""
        copy = self.under_way.pop(generation, None)
        if copy is not None:
            del self.busy[copy.object]
            for node in (copy.source, copy.target):
                self.bytes_of[node] -= copy.charge
                if not self.bytes_of[node]:
                    del self.bytes_of[node]
        return copy

    def made(self, added: list[Object]) -> None:
        """Take note of objects that may want more than one copy."""
        self.newcomers += [each for each in added if is_tagged(each.generation)]

    def forget(self, removed: Object) -> None:
        """Take note that an object is gone."""
        self.thin.pop(removed, None)
        self.spares.pop(removed, None)
        self.parked.pop(removed, None)
        self.hot.pop(removed, None)

    def validate(self) -> None:
        """Raise AssertionError if the parts contradict each other."""
        total: Counter[str] = Counter()
        for generation, copy in self.under_way.items():
            assert copy.generation == generation
            assert self.busy[copy.object] is copy
            total[copy.source] += copy.charge
            total[copy.target] += copy.charge
        assert len(self.busy) == len(self.under_way)
        assert total == self.bytes_of
        assert set(self.moving) <= set(self.retiring)
        assert all(each.alive for each in self.thin)
        assert all(each.alive for each in self.spares)
        assert all(each.alive for each in self.parked)
