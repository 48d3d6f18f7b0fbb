"""Random arguments over the whole API: what comes of a call is of the class that Mooncake's is.

``recorded.json`` has calls and what Mooncake made of them; with MOONCAKE_PYTHON,
``python -m tests.compat.record`` writes it anew. "crash" is where Mooncake's process ended: there
moonpool must answer anything.
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from secrets import randbits
from typing import Any

import pytest

from tests.compat.beds import REAL, WHY_NOT_REAL, Bed, mooncake_bed, moonpool_bed
from tests.compat.cases.arguments import calls
from tests.compat.record import CRASH, RECORDED, outcomes

CHUNK = 250


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with moonpool_bed(tmp_path_factory.mktemp("moonpool"), 600_000) as bed:
        yield bed


def compared(found: list[Any], wanted: list[Any], made: list[dict[str, Any]]) -> None:
    different = [
        f"{call}: {one}, Mooncake: {other}"
        for one, other, call in zip(found, wanted, made, strict=True)
        if other not in (CRASH, one)
    ]
    assert not different, "\n".join(different)


def recorded() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(RECORDED.read_text())
    return loaded


@pytest.mark.parametrize("first", range(0, len(recorded()["calls"]), CHUNK))
def test_as_mooncake_was_recorded(ours: Bed, first: int) -> None:
    told = recorded()
    some, wanted = (told[name][first : first + CHUNK] for name in ("calls", "outcomes"))
    compared(ours.run("random_calls.outcomes", calls=some), wanted, some)


def test_every_name_of_mooncake_is_there(ours: Bed) -> None:
    found = ours.run("plain.names")
    for name, members in recorded()["names"].items():
        assert name in found, name
        missing = set(members) - set(found[name])
        assert not missing, f"{name}: {sorted(missing)}"


@pytest.mark.parametrize("seed", range(3))
def test_nothing_outside_of_registered_memory_is_touched(ours: Bed, seed: int) -> None:
    ours.run("random_calls.wild_pointers", seed=seed)


@pytest.mark.skipif(not REAL, reason=WHY_NOT_REAL)
def test_as_mooncake_beside_it(ours: Bed, tmp_path: Path) -> None:
    seed = randbits(32)
    made = calls(seed, CHUNK)
    with ExitStack() as stack:
        real = stack.enter_context(mooncake_bed(tmp_path, 600_000))
        wanted = outcomes(real, made)
    compared(ours.run("random_calls.outcomes", calls=made), wanted, made)
