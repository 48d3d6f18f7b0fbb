"""A master with a clock of its own, and short names for what tests say to it."""

from __future__ import annotations

from typing import Any, TypeVar

from moonpool.core import messages as m
from moonpool.core.keys import Key, pack
from moonpool.core.master import MasterConfig, MasterState

PAGE = 4096
NAMESPACE = b"N" * 16
T = TypeVar("T")


def block(number: int, namespace: bytes = NAMESPACE) -> Key:
    """Return the key of an engine's block."""
    return pack(number.to_bytes(16, "big"), namespace)


def digests(*numbers: int) -> bytes:
    """Return the packed names of blocks."""
    return b"".join(number.to_bytes(16, "big") for number in numbers)


class Driver:
    """Asks a MasterState, checks it after each step, and keeps what it pushed."""

    def __init__(self, epoch: int = 1, **config: Any) -> None:
        self.master = MasterState(MasterConfig(**{"hard_pin_share": 1.0} | config), epoch)
        self.state = self.master.state
        self.now = 100.0
        self.pushes: list[tuple[str, m.Push]] = []

    def ask(self, request: Any, peer: str = "client") -> m.Reply | None:
        outcome = self.master.handle(request, peer, self.now)
        self.pushes += outcome.pushes
        self.master.validate_state()
        return outcome.reply

    def expect(self, kind: type[T], request: Any, peer: str = "client") -> T:
        reply = self.ask(request, peer)
        assert isinstance(reply, kind), reply
        return reply

    def take_pushes(self) -> list[tuple[str, m.Push]]:
        pushes, self.pushes = self.pushes, []
        return pushes

    def mount(
        self,
        node: str = "node",
        pages: int = 64,
        slots: int = 64,
        *,
        peer: str = "",
        objects: list[m.Found] | None = None,
        last: bool = True,
        generation_max: int = 0,
    ) -> int:
        peer = peer or node
        info = segment_info(node, pages, slots)
        handle = self.expect(m.Mounted, m.Mount(info, generation_max), peer).handle
        if last or objects:
            self.expect(m.Announced, m.Announce(handle, objects or [], last), peer)
        return handle

    def start(
        self,
        *keys: bytes,
        size: int = PAGE,
        parent: bytes = b"",
        peer: str = "client",
        **more: Any,
    ) -> list[m.Grant]:
        items = [m.PutItem(key, size, parent) for key in keys]
        return self.expect(m.PutStarted, m.PutStart(items, **more), peer).grants

    def end(self, *grants: m.Grant, peer: str = "client", checksum: int = 7) -> list[int]:
        generations = [grant.generation for grant in grants]
        request = m.PutEnd(generations, [checksum] * len(grants))
        return self.expect(m.Codes, request, peer).codes

    def revoke(self, *grants: m.Grant, peer: str = "client") -> list[int]:
        request = m.PutRevoke([grant.generation for grant in grants])
        return self.expect(m.Codes, request, peer).codes

    def put(self, *keys: bytes, **more: Any) -> list[m.Grant]:
        grants = self.start(*keys, **more)
        assert [grant.code for grant in grants] == [0] * len(keys)
        assert self.end(*grants, peer=more.get("peer", "client")) == [0] * len(keys)
        return grants

    def put_chain(self, *keys: bytes, **more: Any) -> None:
        parent = b""
        for key in keys:
            self.put(key, parent=parent, **more)
            parent = key

    def get(
        self, *keys: bytes, lease: int = 1, lease_s: float = 10.0, peer: str = "client"
    ) -> list[m.Located]:
        return self.expect(m.Got, m.Get(list(keys), lease, lease_s), peer).objects

    def exists(self, *keys: bytes) -> list[bool]:
        return [bool(b) for b in self.expect(m.Existing, m.Exists(list(keys))).present]

    def remove(self, *keys: bytes, force: bool = False) -> list[int]:
        return self.expect(m.Codes, m.Remove(list(keys), force)).codes

    def anew(self, peer: str) -> tuple[str, ...]:
        """A node goes; return whose sessions are to end for it."""
        return self.master.handle(m.PeerGone(peer, "node"), "", self.now).anew

    def gone(self, peer: str = "client", role: str = "client") -> None:
        assert self.ask(m.PeerGone(peer, role), "") is None

    def tick(self, passed_s: float = 0.0) -> None:
        self.now += passed_s
        assert self.ask(m.Tick(), "") is None

    def stat(self, key: bytes) -> m.ObjectInfo | None:
        objects = self.expect(m.Listed, m.Stat(key)).objects
        return objects[0] if objects else None

    def status(self) -> m.Status:
        return self.expect(m.Status, m.GetStatus())

    def count(self, counter: str) -> int:
        return self.status().counters.get(counter, 0)


def segment_info(node: str = "node", pages: int = 64, slots: int = 64) -> m.SegmentInfo:
    return m.SegmentInfo("s0", node, f"host-{node}", "addr:1", f"/p/{node}", pages * PAGE, slots)
