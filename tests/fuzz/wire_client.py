"""The client: what a master answers, decoded, and what a Store makes of it."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any, get_args

import msgspec
import numpy as np

from moonpool import MoonpoolError, Store
from moonpool.client.local import LocalChannel
from moonpool.core import messages as m
from moonpool.core.keys import pack
from moonpool.errors import ProtocolError
from moonpool.protocol.codec import decode_reply, encode
from moonpool.transport.base import Transport
from moonpool.transport.segment import Segment
from moonpool.transport.shm import ShmTransport
from tests.fuzz import mutate
from tests.fuzz.samples import sample_of
from tests.fuzz.target import REFUSED, TAKEN, Target, require
from tests.fuzz.wire_master import KEYS, MIB, recorded

BUILT: tuple[m.Reply | m.Push, ...] = (
    m.Failed(-704, "x"),
    m.Failed(-1010, "elsewhere", "h:1", 9),
    m.Codes([0, -704]),
    m.Matched(3, True),
    m.Existing(b"\x01\0"),
    m.Awaited(1, m.OPEN, 0.5),
    m.Changes(7, 0, 1, KEYS, [0, 1, 1, 0], ["h"]),
    m.Keys(KEYS, [1, 1, 1, 1], ["h"], 0),
    m.DropSlots(1, [0], [5]),
    m.FenceWriter("client", 5),
    m.DropShelved([KEYS[0]], [5]),
    m.TouchShelved([KEYS[0]]),
)


class Answers(Target):
    """Answers and pushes that are nearly right, to the decoder of clients and nodes."""

    name = "answers"
    share = 15.0
    episode = 1000

    def __init__(self) -> None:
        known = {type(each) for each in BUILT}
        kinds = (*get_args(m.Reply), *get_args(m.Push))
        others = [sample_of(kind) for kind in kinds if kind not in known]
        built = [msgspec.msgpack.decode(encode(7, each)[4:]) for each in (*BUILT, *others)]
        self._good = [*built, *recorded("from master")]

    def take(self, chance: random.Random) -> str:
        good = chance.choice(self._good)
        if chance.random() < 0.5:
            raw = msgspec.msgpack.encode(mutate.tree(chance, good))
        else:
            raw = mutate.bytes_of(chance, msgspec.msgpack.encode(good))
        try:
            decode_reply(raw)
        except ProtocolError:
            return REFUSED
        return TAKEN


class KeptOpen(ShmTransport):
    """The way to a segment of this process, which opening again would not bring back."""

    def close(self) -> None:
        """Do nothing."""


class LyingChannel(LocalChannel):
    """A pool whose master's answers are changed on their way when ``chance`` is set."""

    chance: random.Random | None = None

    def opener(self, info: m.SegmentInfo) -> Transport:
        """Return the way to the segment."""
        return KeptOpen(self._segment)

    def ask(self, request: m.Request, timeout_s: float | None = None) -> tuple[m.Reply, int]:
        """Return the answer, or what has become of it."""
        reply, epoch = super().ask(request, timeout_s)
        if self.chance is None:
            return reply, epoch
        # Numbers of bytes and places are the master's own: they may be anything that fits a type.
        good = msgspec.msgpack.decode(encode(1, reply)[4:])
        good[1][1:] = mutate.tree(self.chance, good[1][1:], times=2) if good[1][1:] else []
        found = decode_reply(msgspec.msgpack.encode(good))[1]
        if isinstance(found, m.Push):
            raise ProtocolError("a push where an answer was expected")
        return found, epoch


class Believer(Target):
    """A Store on a master that answers nonsense: its calls end, with errors of moonpool's."""

    name = "a client's calls"
    share = 12.0
    episode = 300

    def begin(self) -> None:
        self._channel = LyingChannel(Segment.anonymous(2 * MIB))
        channel = self._channel
        self._store = Store(channel, channel.opener, put_timeout_s=0.0, lease_s=5.0)
        self._keys = [pack(b"%016d" % i, b"s" * 16) for i in range(8)]
        self._values = [bytes([i + 1]) * (i * 900 + 1) for i in range(8)]
        require(
            self._store.put_batch(self._keys, self._values) == [0] * 8, "the pool takes objects"
        )
        self._room = bytearray(64 * 1024)
        self._count = 0

    def take(self, chance: random.Random) -> str:
        self._channel.chance = chance
        try:
            chance.choice(self._calls())(chance)
        except MoonpoolError:
            return REFUSED
        finally:
            self._channel.chance = None
        return TAKEN

    def _calls(self) -> list[Callable[[random.Random], Any]]:
        store, keys = self._store, self._keys
        return [
            lambda c: store.get(c.choice(keys)),
            lambda c: store.get_into(c.choice(keys), self._room),
            lambda c: store.get_batch(c.sample(keys, 3)),
            lambda c: store.match_prefix(keys),
            lambda c: store.match_digests(b"s" * 16, b"".join(k[17:] for k in keys)),
            lambda c: store.exists_batch(keys),
            lambda c: store.release(store.hold(c.sample(keys, 3), 1.0)),
            lambda c: store.stat(c.choice(keys)),
            lambda c: store.status(),
            lambda c: store.changes(0),
            lambda c: store.blocks(),
            lambda c: [next(iter(store.list()), None)],
            self._put,
            lambda c: store.remove_batch(c.sample(keys[6:], 1)),
        ]

    def _put(self, chance: random.Random) -> Any:
        self._count += 1
        name = f"new-{self._count}"
        return self._store.put_batch([name], [np.zeros(chance.randrange(1, 5000), np.uint8)])

    def end(self) -> None:
        found = self._store.get_batch(self._keys[:6])
        for value, wanted in zip(found, self._values, strict=False):
            require(value in (None, wanted), "objects are what was put")
        # A segment that was lied about is left alone for half a second.
        until = time.monotonic() + 10.0
        while self._store.put_batch(["last"], [b"x"]) not in ([0], [-705]):
            require(time.monotonic() < until, "the pool takes objects afterwards")
            time.sleep(0.1)
        self._store.close()
