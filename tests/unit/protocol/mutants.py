"""Damaged requests by the thousand: a seeded generator that costs microseconds for each."""

from __future__ import annotations

import copy
import random
from typing import Any

import msgspec

from moonpool.core import messages as m
from moonpool.protocol.codec import encode

KEY = b"\0key"
_INFO = m.SegmentInfo("s", "n", "h", "127.0.0.1:1", "/nowhere", 1 << 20, 64)
SAMPLES: tuple[m.Request, ...] = (
    m.Hello(1, 1, "client", "fuzz"),
    m.Mount(_INFO, 5),
    m.Announce(1, [m.Found(KEY, b"", 10, 4096, 3, 9, 0, 0)], True),
    m.Unmount(1),
    m.GetSegments(),
    m.WriterGone("c", 3),
    m.PutStart([m.PutItem(KEY, 100, b"\0up"), m.PutItem(b"\x01n" + KEY, 5)], 2, "n", True),
    m.PutEnd([1, 2], [3, 4]),
    m.PutRevoke([1, 2**63]),
    m.PutAbandon([1, 2**63]),
    m.Match(b"n", bytes(160), 16, 2),
    m.MatchKeys([KEY, b"\0b"]),
    m.Exists([KEY]),
    m.Get([KEY], 1, 5.0),
    m.Hold([KEY], 2, 5.0),
    m.Release([1]),
    m.Remove([KEY], True),
    m.RemoveAll(b"\0"),
    m.List(None, b"", 0, 10),
    m.Stat(KEY),
    m.GetStatus(),
)
_PAYLOADS = tuple(encode(7, sample)[4:] for sample in SAMPLES)
_EXTREMES: tuple[Any, ...] = (
    0,
    -1,
    2**31,
    2**32,
    2**63 - 1,
    2**64 - 1,
    -(2**63),
    1e308,
    float("nan"),
    float("-inf"),
    None,
    True,
    "",
    "x" * 5000,
    b"",
    b"\xff" * 300,
    [],
    [[[]]],
    {},
    {"a": 1},
)
_TAGS = b"\xc0\xc1\xc4\xc6\xc9\xca\xcb\xcf\xd3\xd9\xdb\xdc\xdd\xdf\x9f\x8f\xbf\xff"


def noise(chance: random.Random) -> bytes:
    """Return bytes without any sense."""
    return chance.randbytes(chance.randrange(1, 200))


def mutant(chance: random.Random) -> bytes:
    """Return the payload of a frame: a request with something wrong, or at least odd."""
    if chance.random() < 0.5:
        return _with_odd_field(chance)
    return _with_odd_bytes(chance, bytearray(chance.choice(_PAYLOADS)))


def _with_odd_field(chance: random.Random) -> bytes:
    request_id, fields = msgspec.msgpack.decode(chance.choice(_PAYLOADS))
    for _ in range(chance.randrange(1, 3)):
        where: list[Any] = fields
        at = chance.randrange(len(where))
        while isinstance(where[at], list) and where[at] and chance.random() < 0.7:
            where = where[at]
            at = chance.randrange(len(where))
        where[at] = copy.deepcopy(chance.choice(_EXTREMES))
    if chance.random() < 0.2:
        fields.append(copy.deepcopy(chance.choice(_EXTREMES)))
    if chance.random() < 0.1:
        request_id = chance.choice(_EXTREMES)
    return msgspec.msgpack.encode([request_id, fields])


def _with_odd_bytes(chance: random.Random, payload: bytearray) -> bytes:
    for _ in range(chance.randrange(1, 4)):
        at = chance.randrange(len(payload))
        way = chance.randrange(4)
        if way == 0:
            payload[at] = chance.randrange(256)
        elif way == 1:
            payload[at] = chance.choice(_TAGS)
        elif way == 2:
            payload[at:at] = chance.randbytes(chance.randrange(1, 6))
        elif len(payload) > 1:
            del payload[at]
    return bytes(payload)
