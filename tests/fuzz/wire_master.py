"""The master: frames from peers, and the state they leave behind."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any, get_args

import msgspec

from moonpool.core import messages as m
from moonpool.core.master import MasterConfig, MasterState
from moonpool.master.service import Service
from moonpool.master.session import Session
from moonpool.protocol.codec import encode
from moonpool.protocol.framing import frame
from tests.fuzz import mutate
from tests.fuzz.samples import sample_of
from tests.fuzz.target import REFUSED, TAKEN, Target, require
from tests.unit.master.peers import Clock, Pipe

RECORDED = Path(__file__).parents[1] / "unit" / "protocol" / "recorded" / "1.jsonl"
MIB = 1 << 20
EPOCH = 7
KEYS = [b"\0key", b"\0other", b"\x10" + b"s" * 16 + b"d" * 16, b"\x10" + b"s" * 16 + b"e" * 16]
INFO = m.SegmentInfo("s", "n", "h", "127.0.0.1:1", "/nowhere", 4 * MIB, 64)
DISK = m.DiskInfo("n", 64 * MIB, "on-evict", 4 * MIB, 4 * MIB)
FOUND = m.Found(KEYS[0], b"", 10, 4096, 3, (EPOCH << 32) - 9, 0, 0)
BUILT: tuple[m.Request, ...] = (
    m.Hello(1, 2, "client", "fuzz"),
    m.Mount(INFO, 5),
    m.Announce(1, [FOUND], True),
    m.Unmount(1),
    m.GetSegments(),
    m.WriterGone("client-0", 3),
    m.Damaged(1, [0], [4]),
    m.PutStart([m.PutItem(KEYS[0], 100, KEYS[1]), m.PutItem(KEYS[2], 70_000)], 2, "n", True),
    m.PutEnd([EPOCH << 32, (EPOCH << 32) + 1], [3, 4]),
    m.PutRevoke([(EPOCH << 32) + 2, 2**63]),
    m.Match(b"s" * 16, b"d" * 16 + b"e" * 16, 16, 2),
    m.MatchKeys(KEYS),
    m.Exists(KEYS),
    m.Get(KEYS, 1, 5.0),
    m.Hold(KEYS, 2, 5.0),
    m.Release([1, 2]),
    m.Remove(KEYS, True),
    m.RemoveAll(b"\0"),
    m.List(None, b"", 0, 10),
    m.Stat(KEYS[0]),
    m.GetStatus(),
    m.GetChanges(0, 10),
    m.GetKeys(-1, 10),
    m.Tell([m.News("t", 1, m.OPEN)]),
    m.Await(KEYS, "t", 1.0),
    m.MountDisk(DISK, 5),
    m.Shelve(1, [m.Shelved(KEYS[0], b"", 10, 3, 4)], True),
    m.Unshelve(1, [KEYS[0]], [4], "corrupt"),
    m.Prefetch(b"s" * 16, b"d" * 16, 16, 1),
)


def recorded(way: str) -> list[Any]:
    """Return what was said in one direction of the recording, as trees."""
    lines = map(json.loads, RECORDED.read_text().splitlines())
    frames = (bytes.fromhex(line["frame"]) for line in lines if line["way"] == way)
    return [msgspec.msgpack.decode(each) for each in frames]


def good_requests() -> list[Any]:
    """Return requests of every kind, as trees: recorded ones, and some that are built here."""
    known = {type(each) for each in BUILT}
    others = [sample_of(kind) for kind in get_args(m.Request) if kind not in known]
    built = [msgspec.msgpack.decode(encode(7, each)[4:]) for each in (*BUILT, *others)]
    return [*built, *recorded("to master")[:200]]


class Peer:
    """A connection."""

    def __init__(self, service: Service, role: str, name: str) -> None:
        self.pipe = Pipe()
        self.session = Session(service)
        self.session.connection_made(self.pipe)
        self.say(encode(1, m.Hello(1, 2, role, name)))

    def say(self, data: bytes) -> bytes:
        """Send bytes; return what came back."""
        self.pipe.sent.clear()
        self.session.data_received(data)
        return bytes(self.pipe.sent)


class MasterWire(Target):
    """Peers of all roles say things that are nearly right to a master that has objects."""

    name = "master's messages"
    share = 25.0
    episode = 400

    def __init__(self) -> None:
        self._good = good_requests()

    def begin(self) -> None:
        self._clock = Clock()
        self._service = Service(MasterState(MasterConfig(), EPOCH), EPOCH, clock=self._clock)
        roles = ["client", "node", "client", "tool", "node"]
        self._peers = [Peer(self._service, r, f"{r}-{i}") for i, r in enumerate(roles)]
        self._witness = Peer(self._service, "client", "witness")
        node = Peer(self._service, "node", "well")
        node.say(encode(2, m.Mount(INFO)))
        node.say(encode(3, m.Announce(1, [], True)))
        self._keep = node

    def take(self, chance: random.Random) -> str:
        at = chance.randrange(len(self._peers))
        peer = self._peers[at]
        if peer.pipe.closed:
            peer.session.connection_lost(None)
            role = chance.choice(("client", "node", "tool"))
            peer = self._peers[at] = Peer(self._service, role, f"{role}-{chance.randrange(9)}")
        if chance.random() < 0.05:
            self._clock.now += chance.choice((0.1, 5.0, 40.0))
            self._service.tick()
        peer.say(self._input(chance))
        require(self._service.counts.bugs == 0, "the master has met a bug")
        return REFUSED if peer.pipe.closed else TAKEN

    def _input(self, chance: random.Random) -> bytes:
        if chance.random() < 0.03:
            return mutate.noise(chance)
        good = chance.choice(self._good)
        way = chance.random()
        if way < 0.2:
            return frame(msgspec.msgpack.encode(good))
        if way < 0.75:
            return frame(msgspec.msgpack.encode(mutate.tree(chance, good)))
        return frame(mutate.bytes_of(chance, msgspec.msgpack.encode(good)) or b"\0")

    def end(self) -> None:
        self._service.tick()
        self._service.state.validate_state()
        answer = self._witness.say(encode(9, m.MatchKeys([b"\0never put"])))
        require(answer == encode(9, m.Matched(0)), f"the witness is answered {answer!r}")
        require(self._service.counts.bugs == 0, "the master has met a bug")
