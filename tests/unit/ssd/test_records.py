"""Index files: what is written is read, and damage is never taken for an object."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moonpool.core.keys import pack
from moonpool.ssd import records as r
from moonpool.ssd.records import Record

EXTENT_BYTES = 1 << 20


def record(number: int, generation: int = 0) -> Record:
    parent = pack(b"p%d" % number) if number % 2 else b""
    key = pack(b"k%d" % number, b"n" * (number % 17))
    return Record(
        key, parent, 4000 + number, number * 7, generation or number + 1, 5, number * 8192
    )


def log_of(count: int) -> bytes:
    head = r.pack_head("node", 5, EXTENT_BYTES)
    return head + b"".join(r.pack_object(record(i)) for i in range(count))


def test_what_is_written_is_read() -> None:
    raw = log_of(40) + r.pack_drop(record(3)) + r.pack_drop(record(4, generation=99))
    found = r.read_log(raw, "node", 5)
    assert found is not None
    assert list(found.objects.values()) == [record(i) for i in range(40) if i != 3]
    assert (found.extent_bytes, found.whole_bytes) == (EXTENT_BYTES, len(raw))


@pytest.mark.parametrize(("node", "extent"), [("other", 5), ("node", 6), ("", 5)])
def test_the_index_of_another_is_none(node: str, extent: int) -> None:
    assert r.read_log(log_of(3), node, extent) is None


def test_a_log_without_a_head_is_none() -> None:
    assert r.read_log(b"", "node", 5) is None
    assert r.read_log(r.pack_object(record(1)), "node", 5) is None


def test_what_cannot_be_ends_the_log() -> None:
    good = record(1)
    for bad in (
        Record(b"", b"", 1, 1, 1, 5, 0),
        Record(good.key, b"\xff", 1, 1, 1, 5, 0),
        Record(good.key, b"", 0, 1, 1, 5, 0),
        Record(good.key, b"", 1, 1, 0, 5, 0),
        Record(good.key, b"", 1, 1, 1, 5, 100),
        Record(good.key, b"", 1, 1, 1, 5, EXTENT_BYTES),
        Record(good.key, b"", 1, 1, 1, 6, 0),
    ):
        raw = log_of(1) + r.pack_object(bad) + r.pack_object(good)
        found = r.read_log(raw, "node", 5)
        assert found is not None
        assert list(found.objects) == [record(0).key]
        assert found.whole_bytes == len(log_of(1))


@pytest.mark.parametrize("seed", range(200))
def test_a_torn_or_flipped_log_gives_a_prefix_of_what_was_written(seed: int) -> None:
    chance = random.Random(seed)
    raw = bytearray(log_of(20))
    if seed % 2:
        del raw[chance.randrange(len(raw)) :]
    else:
        raw[chance.randrange(len(raw))] ^= 1 << chance.randrange(8)
    found = r.read_log(bytes(raw), "node", 5)
    objects = [] if found is None else list(found.objects.values())
    assert objects == [record(i) for i in range(len(objects))]


@given(st.binary(max_size=400))
def test_any_bytes_are_read_without_an_error(raw: bytes) -> None:
    assert r.read_log(raw, "node", 5) is None
    found = r.read_log(log_of(2) + raw, "node", 5)
    assert found is not None
    assert len(found.objects) == 2
