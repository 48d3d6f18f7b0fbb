"""A few thousand inputs of each target, the same each time, and that what is wrong is noticed."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator

import pytest

from tests.fuzz.engine import fuzz
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
def test_what_is_wrong_is_found_and_can_be_had_again(how: str) -> None:
    first, again = (fuzz(Careless(how), 1, 1 if how == "hangs" else 30) for _ in range(2))
    assert first.found
    assert [each[:2] for each in first.found] == [each[:2] for each in again.found]
    episode = first.found[-1][0]
    once = fuzz(Careless(how), 1, 1 if how == "hangs" else 10, first=episode)
    assert once.found[0][:2] == first.found[-1][:2]
