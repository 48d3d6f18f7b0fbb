"""What is typed becomes Options, or an error that says what is allowed."""

import sys

import pytest

from moonpool.bench.batch import Batch
from moonpool.bench.choices import choose
from moonpool.bench.matrix import cells
from moonpool.bench.options import PRESETS
from moonpool.bench.store import MEASURES
from moonpool.errors import InvalidArgumentError


def test_the_bars_are_the_default_and_are_asked_for_there_only() -> None:
    assert choose() == PRESETS["bars"]
    assert [name for name, preset in PRESETS.items() if preset.bars] == ["bars"]


def test_every_section_of_every_preset_is_measured() -> None:
    assert {name for preset in PRESETS.values() for name in preset.sections} == set(MEASURES)


def test_flags_change_the_preset() -> None:
    options = choose(only="tcp, shm", batches=["8x2x4k"], clients=[2, 4], runs=3, streams=7)
    assert options.sections == ("tcp", "shm")
    assert options.batches == (Batch(8, 2, 4096),)
    assert (options.clients, options.runs, options.streams) == ((2, 4), 3, 7)


def test_a_batch_of_ones_own_has_no_bar() -> None:
    assert not choose(batches=["8x2x4k"]).bars
    assert not choose(clients=[2]).bars
    assert choose(runs=3).bars


def test_mooncake_is_this_interpreter_s_or_another_s() -> None:
    assert choose().mooncake == ""
    assert choose(mooncake_python="/opt/python").mooncake == ""
    assert choose(versus="mooncake").mooncake == sys.executable
    assert choose(versus="mooncake", mooncake_python="/opt/python").mooncake == "/opt/python"


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ({"preset": "all"}, "bars, matrix, quick"),
        ({"only": "shm,disk"}, "'disk'"),
        ({"versus": "redis"}, "mooncake"),
        ({"batches": ["7"]}, "--batch"),
        ({"batches": ["1000000x64x16m"]}, "must fit into the machine's memory"),
    ],
)
def test_what_is_unknown_is_refused(typed: dict[str, object], said: str) -> None:
    with pytest.raises(InvalidArgumentError, match=said):
        choose(**typed)  # type: ignore[arg-type]


def test_the_matrix_has_all_sizes_counts_and_pieces_that_fit() -> None:
    options = PRESETS["matrix"]
    found = cells(options)
    assert {batch.object_bytes for batch in found} == set(options.sizes)
    assert {batch.objects for batch in found} == set(options.counts)
    assert {batch.pieces for batch in found} == set(options.pieces)
    assert max(batch.nbytes for batch in found) <= options.matrix_bytes
    assert Batch(5000, 1, 4096) in found
