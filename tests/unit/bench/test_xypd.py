"""Splits, figures and the workbook of ``moonpool bench xypd``."""

from __future__ import annotations

import math
import zipfile
from pathlib import Path

import pytest

from moonpool.bench.xypd import Outcome
from moonpool.bench.xypd_book import COLUMNS, values, write
from moonpool.bench.xypd_figures import figures, gaps_s, tpot_s
from moonpool.bench.xypd_report import as_json, cells, different, well
from moonpool.bench.xypd_split import Split, splits
from moonpool.demo.compare import compare
from moonpool.errors import ConfigError
from moonpool.workload.replay import Answer, Choice, Run


def _answer(turn: int, token_s: tuple[float, ...], token: int = 5, error: str = "") -> Answer:
    choices = tuple(Choice(token, -0.1, 9, -4.0) for _ in token_s)
    return Answer(
        "=cmd()", turn, 100, 60, 50, choices, token_s[0] if token_s else 0.0,
        token_s[-1] if token_s else 0.0, error, token_s,
    )  # fmt: skip


def _outcome(label: str, run: Run, first: Run) -> Outcome:
    return Outcome(label, label, "prefix", figures(run), run.answers, compare(run, first))


RUN = Run((_answer(0, (0.5, 0.6, 0.8)), _answer(1, (0.1,)), _answer(2, (), error="no")), 2.0)


def test_splits_are_read() -> None:
    assert splits("1P1D, 2p4d,3") == (Split(1, 1), Split(2, 4), Split(both=3))
    assert [str(split) for split in splits("1P1D,2p4d,3")] == ["1P1D", "2P4D", "3"]


@pytest.mark.parametrize("text", ["", ",", "P1D", "0P1D", "1P0D", "0", "1P1D,1P1D", "40P40D", "-1"])
def test_what_is_no_split_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"configs: .* is not allowed; allowed: "):
        splits(text)


def test_figures_are_those_of_the_answers() -> None:
    found = figures(RUN)
    assert (found.requests, found.errors, found.output_tokens) == (3, 1, 4)
    assert (found.requests_per_s, found.output_tokens_per_s) == (1.0, 2.0)
    assert (found.hit_rate, found.could_hit_rate) == (0.5, 0.6)
    assert (found.ttft_s.p50, found.ttft_s.p99) == (0.1, 0.5)
    assert found.tpot_s.p50 == pytest.approx(0.15)
    assert found.itl_s.p99 == pytest.approx(0.2)
    assert found.e2e_s.p99 == 0.8


def test_an_answer_of_one_token_has_no_time_between_tokens() -> None:
    assert math.isnan(tpot_s(RUN.answers[1]))
    assert gaps_s(RUN.answers[1]) == []
    assert math.isnan(figures(Run((RUN.answers[1],), 1.0)).itl_s.p50)


def test_other_outputs_are_counted() -> None:
    good = Run((_answer(0, (0.5,)),), 1.0)
    other = Run((_answer(0, (0.5,), token=6),), 1.0)
    first, second = _outcome("1P1D", good, good), _outcome("2P1D", other, good)
    assert (different(first), different(second)) == (0, 1)
    assert well([first])
    assert not well([first, second])
    assert not well([_outcome("1P1D", RUN, RUN)])
    assert cells(second)[-1] == "1"
    assert as_json([first, second], "about")["configs"][1]["outputs_different"] == 1


def test_the_workbook_holds_data_charts_and_every_request(tmp_path: Path) -> None:
    file = tmp_path / "book.xlsx"
    outcomes = [_outcome("1P1D", RUN, RUN), _outcome("x" * 60, RUN, RUN)]
    write(file, outcomes, "=about()")
    assert len(values(outcomes[0])) == len(COLUMNS)
    with zipfile.ZipFile(file) as parts:
        book = parts.read("xl/workbook.xml").decode()
        sheets = [parts.read(f"xl/worksheets/sheet{n}.xml").decode() for n in range(1, 5)]
        charts = [name for name in parts.namelist() if name.startswith("xl/charts/chart")]
    assert [f'name="{name}"' in book for name in ("Data", "Charts", "1 1P1D")] == [True] * 3
    assert len(charts) == 7 + 2
    # What an engine or a trace says stays text.
    assert not any("<f>" in sheet for sheet in sheets)
    assert sheets[2].count("<row ") == 1 + 3


def test_a_workbook_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be written"):
        write(tmp_path / "no" / "book.xlsx", [_outcome("1P1D", RUN, RUN)], "about")
