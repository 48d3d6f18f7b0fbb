"""A network of hosts: streams with delays, cuts and breaks. Bytes of one stream stay in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from tests.sim.world.hub import Hub, Process

DATA, EOF = 1, 2
KEEPALIVE_S = 11.0
"""A connection over a cut that lasts longer is given up by both ends' systems."""
RETRANSMIT_S = 0.2


class Reader(Protocol):
    """Whoever is told what comes at an end."""

    def arrived(self, data: bytes) -> None: ...

    def ended(self, error: str) -> None: ...


class End:
    """One end of a stream."""

    def __init__(self, net: Network, process: Process, address: tuple[str, int]) -> None:
        self.net = net
        self.process = process
        self.address = address
        self.peer = self
        """Itself until it is connected."""
        self.reader: Reader | None = None
        self.closed = False
        self.broken = False
        self.finished = False
        self._clear_at = 0.0
        self._held: deque[tuple[int, bytes]] = deque()
        process.ends[self] = None

    def send(self, data: bytes) -> None:
        """Send bytes. Raises OSError once the other end has refused some."""
        if self.broken:
            raise ConnectionResetError(104, "Connection reset by peer")
        if self.closed or self.finished:
            raise BrokenPipeError(32, "Broken pipe")
        self._pass(DATA, data)

    def finish(self) -> None:
        """Send nothing more."""
        if not (self.finished or self.broken or self.peer is self):
            self.finished = True
            self._pass(EOF, b"")

    def close(self) -> None:
        """Close; what comes is refused."""
        self.finish()
        self.closed = True
        self.process.ends.pop(self, None)

    def died(self) -> None:
        """The process is gone; its system closes the stream."""
        self.close()

    def reset(self) -> None:
        """Break: what was under way is lost."""
        if self.broken or self.closed or self.peer is self:
            return
        self.broken = True
        self._held.clear()
        if self.reader is not None:
            self.net.hub.soon(self.process, self.reader.ended, "Connection reset by peer")

    def _pass(self, kind: int, data: bytes) -> None:
        net = self.net
        self._clear_at = max(self._clear_at, net.hub.now + net.delay(self, self.peer))
        net.hub.at(self._clear_at, None, self._cross, kind, data)

    def _cross(self, kind: int, data: bytes) -> None:
        """Something has crossed the network, if there is a way."""
        if self.broken:
            return
        if self._held or self.net.is_cut(self.process.host, self.peer.process.host):
            if not self._held:
                self.net.holding[self] = None
            self._held.append((kind, data))
            return
        peer = self.peer
        if peer.closed:
            if kind == DATA:
                self.reset()
            return
        if peer.broken or peer.reader is None:
            return
        if kind == DATA:
            self.net.hub.now_or_later(peer.process, peer.reader.arrived, data)
        else:
            self.net.hub.now_or_later(peer.process, peer.reader.ended, "")

    def healed(self) -> None:
        """There may be a way again: send once more what was held up."""
        if self.net.is_cut(self.process.host, self.peer.process.host):
            return
        self.net.holding.pop(self, None)
        held, self._held = self._held, deque()
        for kind, data in held:
            self._pass(kind, data)


class Listener:
    """An address at which a process takes connections."""

    def __init__(
        self, net: Network, process: Process, address: tuple[str, int], taken: Callable[[End], None]
    ) -> None:
        self.net = net
        self.process = process
        self.address = address
        self.taken = taken
        process.listeners.append(self)
        net.listeners[address] = self

    def close(self) -> None:
        if self.net.listeners.get(self.address) is self:
            del self.net.listeners[self.address]


class Network:
    """All hosts, and what lies between them."""

    def __init__(self, hub: Hub, delay_s: float) -> None:
        self.hub = hub
        self.listeners: dict[tuple[str, int], Listener] = {}
        self.holding: dict[End, None] = {}
        self.cuts: dict[frozenset[str], int] = {}
        self._delay_s = delay_s
        self._port = 40_000

    def delay(self, a: End, b: End) -> float:
        """Draw how long something takes from one end to the other."""
        rng = self.hub.rng
        if a.process.host == b.process.host:
            return 20e-6 * (1 + rng.random())
        delay = self._delay_s * rng.random()
        return delay if rng.random() < 0.99 else delay + RETRANSMIT_S * rng.random()

    def is_cut(self, a: str, b: str) -> bool:
        return bool(self.cuts) and self.cuts.get(frozenset((a, b)), 0) > 0

    def cut(self, one: list[str], other: list[str], seconds: float) -> None:
        """Let nothing pass between two groups of hosts for a while."""
        pairs = [frozenset((a, b)) for a in one for b in other if a != b]
        for pair in pairs:
            self.cuts[pair] = self.cuts.get(pair, 0) + 1
        self.hub.note(f"cut {one} from {other} for {seconds:.3f}")
        if seconds > KEEPALIVE_S:
            self.hub.at(self.hub.now + KEEPALIVE_S, None, self._give_up)
        self.hub.at(self.hub.now + seconds, None, self._heal, pairs)

    def _heal(self, pairs: list[frozenset[str]]) -> None:
        for pair in pairs:
            left = self.cuts[pair] - 1
            if left:
                self.cuts[pair] = left
            else:
                del self.cuts[pair]
        self.hub.note("heal")
        for end in list(self.holding):
            end.healed()

    def _give_up(self) -> None:
        for end in list(self.holding):
            if self.is_cut(end.process.host, end.peer.process.host):
                self.holding.pop(end, None)
                end.reset()
                end.peer.reset()

    def break_one(self, pick: Callable[[list[Any]], Any], processes: list[Process]) -> None:
        """Break a stream of these processes."""
        ends = [end for process in processes for end in process.ends if not end.broken]
        if ends:
            end = pick(ends)
            self.hub.note(f"break {end.process.name} {end.peer.process.name}")
            end.reset()
            end.peer.reset()

    def connect(
        self, process: Process, address: tuple[str, int], done: Callable[[End | None, str], None]
    ) -> None:
        """Connect; ``done`` is told the end, or why there is none, or nothing ever (cut off)."""
        self._port += 1
        mine = End(self, process, (process.host, self._port))
        listener = self.listeners.get(address)
        host = process.host if listener is None else listener.process.host
        if isinstance(address[0], str) and listener is None:
            host = address[0]
        rng = self.hub.rng
        delay = self._delay_s * rng.random() if host != process.host else 40e-6 * rng.random()
        self.hub.at(self.hub.now + delay, None, self._reach, mine, address, host, done)

    def _reach(
        self,
        mine: End,
        address: tuple[str, int],
        host: str,
        done: Callable[[End | None, str], None],
    ) -> None:
        process = mine.process
        if not process.alive or mine.closed:
            return
        if self.is_cut(process.host, host):
            self.hub.at(
                self.hub.now + 1.0, process, self._reach, mine, address, host, done
            )  # as a system does that sends its first segment again
            return
        listener = self.listeners.get(address)
        if listener is None or not listener.process.alive:
            process.ends.pop(mine, None)
            self.hub.soon(process, done, None, "Connection refused")
            return
        theirs = End(self, listener.process, listener.address)
        mine.peer, theirs.peer = theirs, mine
        # The other system takes it, even if its process stands still.
        self.hub.at(self.hub.now, listener.process, listener.taken, theirs)
        delay = 20e-6 if host == process.host else self._delay_s * self.hub.rng.random()
        self.hub.at(self.hub.now + delay, process, done, mine, "")
