"""Many reads at once bring what one at a time does, and say what is wrong with each."""

from __future__ import annotations

import mmap
import os
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from moonpool.ssd.aio import Context, Reads
from moonpool.ssd.local import LocalVolume
from moonpool.ssd.many import ManyReads
from moonpool.ssd.reading import Call
from moonpool.ssd.spans import Span
from moonpool.ssd.volume import VolumeError
from moonpool.transport import native

MIB = 1 << 20
BLOCK = 4096


@pytest.fixture
def volume(tmp_path: Path) -> Iterator[LocalVolume]:
    made = LocalVolume(tmp_path, "n")
    if made.many is None:
        made.close()
        pytest.skip("no asynchronous reads past the page cache here")
    yield made
    made.close()


def memory(nbytes: int) -> tuple[mmap.mmap, int]:
    made = mmap.mmap(-1, nbytes)
    return made, int(np.frombuffer(made, np.uint8).ctypes.data)


def fill(volume: LocalVolume, number: int, raw: bytes) -> None:
    volume.make(number, len(raw))
    held, address = memory(len(raw))
    held[:] = raw
    volume.write(number, 0, [native.view(address, len(raw))])
    volume.sync(number)


def many(volume: LocalVolume) -> ManyReads:
    assert volume.many is not None
    return volume.many


def test_all_arrives_in_pieces_and_from_several_extents(volume: LocalVolume) -> None:
    chance = random.Random(1)
    raws = {number: chance.randbytes(MIB) for number in (1, 2)}
    for number, raw in raws.items():
        fill(volume, number, raw)
    held, address = memory(2 * MIB)
    calls, expected = [], {}
    at = 0
    for number, raw in raws.items():
        for offset in chance.sample(range(0, MIB, 4 * BLOCK), 60):
            span = Span(offset, offset + 3 * BLOCK, [(address + at, BLOCK)])
            span.pieces.append((address + at + 2 * BLOCK, 2 * BLOCK))
            expected[at] = raw[offset : offset + 3 * BLOCK]
            calls.append(Call(number, span))
            at += 4 * BLOCK
    said: list[tuple[int, object]] = []
    many(volume).read_all(calls, lambda place, error: said.append((place, error)))
    assert sorted(place for place, _ in said) == list(range(120))
    assert {error for _, error in said} == {None}
    for at, raw in expected.items():
        assert held[at : at + BLOCK] + held[at + 2 * BLOCK : at + 4 * BLOCK] == raw


def test_one_that_fails_does_not_hold_the_others_up(volume: LocalVolume) -> None:
    fill(volume, 1, bytes(range(256)) * 64)
    held, address = memory(4 * BLOCK)
    spans = [
        (1, Span(0, BLOCK, [(address, BLOCK)])),
        (9, Span(0, BLOCK, [(address + BLOCK, BLOCK)])),
        (1, Span(4 * BLOCK, 5 * BLOCK, [(address + 2 * BLOCK, BLOCK)])),
        (1, Span(3 * BLOCK, 4 * BLOCK, [(address + 3 * BLOCK, BLOCK)])),
    ]
    said: dict[int, VolumeError | None] = {}
    many(volume).read_all([Call(*each) for each in spans], said.__setitem__)
    reasons = {place: error and error.reason for place, error in said.items()}
    assert reasons == {0: None, 1: "gone", 2: "truncated", 3: None}
    assert held[:16] == held[3 * BLOCK : 3 * BLOCK + 16] == bytes(range(16))


def test_where_the_kernel_refuses_a_call_is_made_the_plain_way(
    volume: LocalVolume, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(volume, 1, os.urandom(4 * BLOCK))

    def refuse(_self: Context, _reads: Reads, _done: object) -> None:
        raise OSError(11, "no more of these")

    monkeypatch.setattr(Context, "run", refuse)
    _held, address = memory(BLOCK)
    said: dict[int, VolumeError | None] = {}
    many(volume).read_all([Call(1, Span(0, BLOCK, [(address, BLOCK)]))], said.__setitem__)
    assert said == {0: None}


def test_more_calls_than_may_be_under_way(volume: LocalVolume) -> None:
    raw = os.urandom(MIB)
    fill(volume, 1, raw)
    held, address = memory(MIB)
    calls = [Call(1, Span(at, at + BLOCK, [(address + at, BLOCK)])) for at in range(0, MIB, BLOCK)]
    said: dict[int, VolumeError | None] = {}
    many(volume).read_all(calls, said.__setitem__)
    assert set(said.values()) == {None}
    assert held[:] == raw
