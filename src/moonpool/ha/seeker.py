"""Finding the leader and never going back to one before it: the follower's side.

A follower is told masters, or the store of their election. It goes to the master that it knows to
lead, else to the one that the store or another master names. Who was told one master follows as
soon as that says that it does not lead: then there are several. Whoever welcomes it with a lower
epoch than one seen before is a deposed leader and refused.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol, TypeVar

from moonpool.config_ha import ElectionStore, is_store, parse_masters, parse_store
from moonpool.config_values import parse_address
from moonpool.errors import MasterUnreachableError, MoonpoolError, NotLeaderError
from moonpool.ha.election import Record

HOPS_MAX = 4
"""Masters that are asked in a row."""
KNOWN_MAX = 16
SUSPECT_S = 0.3
"""How long a master may take to greet that was lost just before: it is probably frozen."""

Address = tuple[str, int]
Look = Callable[[ElectionStore, float], Record | None]


class Greeted(Protocol):
    """A connection that a master has welcomed."""

    epoch: int

    def close(self) -> None:
        """End it."""
        ...


T = TypeVar("T", bound=Greeted)


class Seeker:
    """Where a follower's master is. Threads may share it."""

    def __init__(self, where: str, look: Look | None = None) -> None:
        """where: ``host:port``, several of them with commas, or the store of an election."""
        self.where = where
        self.epoch = 0
        self._look = look
        self._lock = threading.Lock()
        self._store: ElectionStore | None = None
        self._known: list[Address] = []
        self._hint: Address | None = None
        self._leader: Address | None = None
        self._suspect: Address | None = None
        if is_store(where):
            self._store = parse_store(where)
        else:
            self._known = list(parse_masters(where))
        self.follows = self._store is not None or len(self._known) > 1

    def __str__(self) -> str:
        leader = self._leader
        return self.where if leader is None or not self.follows else f"{leader[0]}:{leader[1]}"

    def next(self, timeout_s: float) -> Address:
        """Return whom to ask now. Blocks for ``timeout_s`` at most, if a store has to be asked.

        Raises MasterUnreachableError if it is not known who leads.
        """
        if not self.follows:
            return self._known[0]
        with self._lock:
            hint, self._hint = self._hint, None
            if hint is not None or self._leader is not None:
                return hint or self._leader  # type: ignore[return-value]  # one of them is there
        if self._store is not None:
            return self._asked(self._store, timeout_s)
        return self._turn()

    def redirected(self, error: NotLeaderError) -> bool:
        """Take note of a master's word that another leads; return whether it is worth a try."""
        with self._lock:
            self.follows = True
            self._leader = None
            if not error.leader or error.epoch < self.epoch:
                return False
            try:
                self._hint = parse_address(error.leader)
            except ValueError:
                return False
            self._learn(self._hint)
            return True

    def accepted(self, address: Address, epoch: int) -> None:
        """Take note of a Welcome; raise MasterUnreachableError if it is a deposed leader's."""
        if not self.follows:
            return
        with self._lock:
            if epoch < self.epoch:
                self._leader = None
                raise MasterUnreachableError(
                    f"the master at {address[0]}:{address[1]} is of epoch {epoch}, and one of "
                    f"epoch {self.epoch} was there already"
                )
            self.epoch = epoch
            self._leader = address
            self._suspect = None
            self._learn(address)

    def failed(self, address: Address) -> None:
        """Take note that a master could not be reached, or was lost."""
        with self._lock:
            self._suspect = address
            if self._leader == address:
                self._leader = None

    def lost(self) -> None:
        """Take note that the leader was lost."""
        with self._lock:
            self._suspect = self._leader or self._suspect
            self._leader = None

    def patience_s(self, address: Address, limit_s: float) -> float:
        """Return how long a master may take to greet, where others may do it in its place."""
        return min(limit_s, SUSPECT_S) if self.follows and address == self._suspect else limit_s

    def reach(self, open_: Callable[[Address], T], limit_s: float) -> T:
        """Return what ``open_`` makes of the leader's address. Raises MoonpoolError."""
        error: MoonpoolError = MasterUnreachableError("no master was asked")
        for _ in range(HOPS_MAX):
            address = self.next(limit_s)
            try:
                found = open_(address)
            except NotLeaderError as elsewhere:
                error = elsewhere
                if not self.redirected(elsewhere) and self._store is not None:
                    break
                continue
            except MoonpoolError:
                self.failed(address)
                raise
            try:
                self.accepted(address, found.epoch)
            except MoonpoolError:
                found.close()
                raise
            return found
        raise error

    def _asked(self, store: ElectionStore, timeout_s: float) -> Address:
        look = self._look or look_in
        try:
            record = look(store, timeout_s)
        except MoonpoolError as error:
            if self._known:
                return self._turn()
            raise MasterUnreachableError(f"who leads cannot be asked: {error}") from None
        if record is None or not record.holder:
            raise MasterUnreachableError(f"no master leads, says {store}")
        try:
            return parse_address(record.address)
        except ValueError:
            raise MasterUnreachableError(
                f"{store} says that {record.address[:80]!r} leads, which is no address"
            ) from None

    def _turn(self) -> Address:
        with self._lock:
            first = self._known.pop(0)
            self._known.append(first)
            return first

    def _learn(self, address: Address) -> None:
        if address not in self._known and len(self._known) < KNOWN_MAX:
            self._known.append(address)


def look_in(store: ElectionStore, timeout_s: float) -> Record | None:
    """Return the record in a store. Raises MoonpoolError."""
    from moonpool.ha import look  # what it needs is of no use to the others

    return look.look_in(store, timeout_s)
