"""Rows: ratios, bars, spread, and what is said where something failed."""

import io
import json

import pytest
from rich.console import Console

from moonpool.bench import report
from moonpool.bench.report import Limit, Row, rate_row, time_row
from moonpool.bench.series import Series

GB = 10**9


def shown(rows: list[Row]) -> str:
    console = Console(file=io.StringIO(), width=250)
    console.print(report.table(rows))
    output = console.file
    assert isinstance(output, io.StringIO)
    return output.getvalue()


@pytest.mark.parametrize(("bar", "met"), [(0.5, True), (0.51, False)])
def test_a_rate_is_held_against_a_limit(bar: float, met: bool) -> None:
    limit = Limit("memcpy", Series((0.1, 0.1, 0.2)), bar)
    row = rate_row("shm", "put", Series((0.2, 0.2, 0.4)), GB, limit)
    assert (row.value, row.low, row.high) == (5.0, 2.5, 5.0)
    assert (row.against_value, row.ratio, row.met) == (10.0, 0.5, met)
    assert row.seconds == {"measured": [0.2, 0.2, 0.4], "against": [0.1, 0.1, 0.2]}


def test_without_a_bar_nothing_is_met_or_missed() -> None:
    row = rate_row("shm", "put", Series((0.2,)), GB, Limit("memcpy", Series((0.1,))))
    assert (row.ratio, row.bar, row.met) == (0.5, "", None)


def test_a_time_is_a_median_in_microseconds_and_less_is_better() -> None:
    row = time_row("small", "get", Series((1e-4,)), Limit("Mooncake", Series((3e-4,)), 1.0))
    assert row.value == pytest.approx(100)
    assert row.ratio == pytest.approx(3)
    assert row.met


def test_a_peer_that_failed_leaves_our_figure_and_the_reason() -> None:
    peer = Limit("Mooncake", Series((), "512 x -800"), 5.0)
    row = rate_row("shm", "put", Series((0.5,)), GB, peer)
    assert (row.value, row.ratio, row.met, row.note) == (2.0, None, None, "512 x -800")
    assert "512 x -800" in shown([row])


def test_our_own_failure_is_a_row_with_the_reason() -> None:
    row = time_row("small", "get", Series((), "no answer"), Limit("Mooncake", Series((1.0,)), 1.0))
    assert (row.value, row.note, row.bar) == (None, "no answer", ">= 1")
    assert "not measured: no answer" in shown([row])
    assert "no answer" in report.line(row)


def test_the_table_has_figure_ratio_bar_and_verdict() -> None:
    limit = Limit("Mooncake, tuned", Series((2.0,)), 5.0)
    text = shown([rate_row("shm", "put", Series((0.1,)), GB, limit)])
    for part in ("10.0 GB/s", "Mooncake, tuned (0.50 GB/s)", "20.0", ">= 5", "yes"):
        assert part in text


def test_footnotes_say_which_way_of_mooncake_is_compared() -> None:
    tuned = rate_row("shm", "put", Series((0.1,)), GB, Limit("Mooncake, tuned", Series((2.0,))))
    plain = rate_row("shm", "put", Series((0.1,)), GB, Limit("memcpy", Series((2.0,))))
    notes = report.footnotes([tuned, plain])
    assert any("another process's" in note for note in notes)
    assert any("-800" in note for note in notes)
    assert report.footnotes([plain]) == []


def test_the_matrix_has_a_line_for_each_cell() -> None:
    limits = [Limit("memcpy, 1 thread", Series((0.1,))), Limit("Mooncake", Series((), "away"))]
    rows = [rate_row("shm-matrix", "16 x 4 KiB: put", Series((0.2,)), GB, n) for n in limits]
    rows.append(time_row("shm-matrix", "16 x 4 KiB: lookup", Series((1e-4,)), None))
    table = report.matrix_table(rows)
    assert table.row_count == 1
    assert [list(column.cells) for column in table.columns] == [
        ["16 x 4 KiB"],
        ["5.00 GB/s, 0.50x memcpy, Mooncake failed"],
        ["100 us"],
    ]


def test_rows_survive_a_file() -> None:
    rows = [
        rate_row("shm", "put", Series((0.1,)), GB, Limit("memcpy", Series((2.0,)), 5.0)),
        report.missing("tcp", "get", "why"),
    ]
    assert report.from_dicts(json.loads(json.dumps(report.as_dicts(rows)))) == rows


def test_markdown_has_a_line_for_each_row() -> None:
    limit = Limit("Mooncake", Series((2.0,)), 5.0)
    rows = [
        rate_row("shm", "put", Series((0.1, 0.2, 0.1)), GB, None),
        rate_row("shm", "get", Series((0.1,)), GB, limit),
        report.missing("delay", "1 ms", "no iperf3"),
    ]
    lines = report.markdown(rows).splitlines()
    assert len(lines) == 5
    assert lines[2] == "| put | 10.0 GB/s (5.00 to 10.0) |  |  |  |  |"
    assert lines[3].endswith("| Mooncake: 0.50 GB/s | 20.0 | >= 5 | yes |")
    assert lines[4] == "| 1 ms |  |  |  |  | not measured: no iperf3 |"
