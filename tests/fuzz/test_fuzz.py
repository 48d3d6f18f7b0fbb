"""A few thousand inputs of each target, the same each time, and that what is wrong is noticed."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator

import pytest

from moonpool.ssd.reading import Reading
from moonpool.ssd.spans import Span
from moonpool.transport import scan
from tests.fuzz.engine import fuzz
from tests.fuzz.files_disk import ShelfFiles
from tests.fuzz.files_segment import SegmentFile
from tests.fuzz.target import TAKEN, Target
from tests.fuzz.targets import TARGETS

INPUTS = 8_000
"""Of all targets together."""


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("kind", TARGETS, ids=lambda kind: kind.name)
def test_hostile_input_ends_in_typed_errors(kind: type[Target]) -> None:
    share = kind.share / sum(each.share for each in TARGETS)
    result = fuzz(kind(), seed=0, inputs=max(20, round(INPUTS * share)))
    assert result.found == [], result.found[0]


class Careless(Target):
    """Does one thing wrong."""

    name = "careless"
    episode = 10

    def __init__(self, how: str) -> None:
        self.how = how

    def take(self, chance: random.Random) -> str:
        if self.how == "raises" and chance.random() < 0.3:
            raise KeyError("nobody expects it")
        while self.how == "hangs":
            chance.random()
        return TAKEN

    def end(self) -> None:
        assert self.how != "breaks", "it does not work any more"


@pytest.mark.parametrize("how", ["raises", "hangs", "breaks"])
def test_what_is_wrong_is_found_and_can_be_had_again(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.fuzz.engine.INPUT_CPU_S", 0.1)
    first, again = (fuzz(Careless(how), 1, 1 if how == "hangs" else 30) for _ in range(2))
    assert first.found
    assert [each[:2] for each in first.found] == [each[:2] for each in again.found]
    episode = first.found[-1][0]
    once = fuzz(Careless(how), 1, 1 if how == "hangs" else 10, first=episode)
    assert once.found[0][:2] == first.found[-1][:2]


def test_segments_whose_payloads_are_not_compared_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scan, "damaged", lambda _segment, _table: iter(()))
    found = fuzz(SegmentFile(), 1, 600).found
    assert found
    assert all("wrong bytes of" in text for _, _, text in found)


def test_disks_whose_payloads_are_not_compared_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def believe(reading: Reading, span: Span) -> bool:
        with reading._lock:
            for index in span.owners:
                reading._left[index] -= 1
        for index in span.owners:
            if not reading._left[index]:
                reading._tails.settle(reading._parts[index])
        return True

    monkeypatch.setattr(Reading, "arrived", believe)
    found = fuzz(ShelfFiles(), 1, 300).found
    assert found
    assert all("wrong bytes of" in text for _, _, text in found)
