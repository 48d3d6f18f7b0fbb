"""The splits as an Excel workbook: one sheet of data, one for each split, and native charts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from moonpool.bench.xypd import Outcome
from moonpool.bench.xypd_figures import tpot_s
from moonpool.bench.xypd_report import PERCENTILES, TIMES, different
from moonpool.errors import ConfigError

DATA, CHARTS = "Data", "Charts"
COLUMNS = (
    "config", "requests", "errors", "different outputs", "wall s", "requests/s",
    "output tokens/s", "all tokens/s", "hit rate", "could hit rate",
    *(f"{name} {percentile} s" for name, _ in TIMES for percentile in PERCENTILES),
)  # fmt: skip
REQUEST_COLUMNS = (
    "number", "session", "turn", "prompt tokens", "cached tokens", "output tokens", "TTFT s",
    "TPOT s", "E2E s", "error",
)  # fmt: skip
NAME_MAX = 31
"""Excel's longest name of a sheet."""


def require() -> None:
    """Raise ConfigError unless workbooks can be written."""
    import importlib.util

    if importlib.util.find_spec("xlsxwriter") is None:
        raise ConfigError(
            "xlsx: XlsxWriter is not installed; allowed: pip install 'moonpool[bench]'"
        )


def write(file: Path, outcomes: Sequence[Outcome], about: str) -> None:
    """Write the workbook; raise ConfigError where that cannot be."""
    import xlsxwriter

    try:
        with xlsxwriter.Workbook(str(file), {"nan_inf_to_errors": True}) as book:
            _Writer(book).write(outcomes, about)
    except (OSError, xlsxwriter.exceptions.FileCreateError) as error:
        raise ConfigError(f"xlsx: {file} cannot be written ({error}); allowed: a file") from None


class _Writer:
    def __init__(self, book: Any) -> None:
        self._book = book
        self._bold = book.add_format({"bold": True, "text_wrap": True, "valign": "top"})
        self._percent = book.add_format({"num_format": "0.0%"})
        self._number = book.add_format({"num_format": "#,##0.000"})

    def write(self, outcomes: Sequence[Outcome], about: str) -> None:
        self._data(outcomes, about)
        self._charts(outcomes)
        for place, outcome in enumerate(outcomes):
            self._requests(place, outcome)

    def _data(self, outcomes: Sequence[Outcome], about: str) -> None:
        sheet = self._book.add_worksheet(DATA)
        sheet.write_row(0, 0, COLUMNS, self._bold)
        sheet.freeze_panes(1, 1)
        sheet.set_column(0, 0, 18)
        sheet.set_column(1, len(COLUMNS) - 1, 11)
        for row, outcome in enumerate(outcomes, start=1):
            for column, value in enumerate(values(outcome)):
                share = COLUMNS[column].endswith("rate")
                whole = isinstance(value, (str, int))
                form = None if whole else self._percent if share else self._number
                _cell(sheet, row, column, value, form)
        sheet.write_string(len(outcomes) + 2, 0, about)

    def _charts(self, outcomes: Sequence[Outcome]) -> None:
        sheet = self._book.add_worksheet(CHARTS)
        count = len(outcomes)
        for place, (name, _) in enumerate(TIMES):
            columns = [COLUMNS.index(f"{name} {percentile} s") for percentile in PERCENTILES]
            chart = self._columns(f"{name}, seconds", columns, count)
            sheet.insert_chart(18 * (place // 2), 9 * (place % 2), chart)
        for place, names in enumerate((("requests/s",), ("output tokens/s",))):
            columns = [COLUMNS.index(name) for name in names]
            sheet.insert_chart(36, 9 * place, self._columns(names[0], columns, count))
        hits = [COLUMNS.index("hit rate"), COLUMNS.index("could hit rate")]
        sheet.insert_chart(54, 0, self._columns("Hit rate, of prompt tokens", hits, count))

    def _columns(self, title: str, columns: Sequence[int], count: int) -> Any:
        chart = self._book.add_chart({"type": "column"})
        for column in columns:
            chart.add_series(
                {
                    "name": [DATA, 0, column],
                    "categories": [DATA, 1, 0, count, 0],
                    "values": [DATA, 1, column, count, column],
                }
            )
        chart.set_title({"name": title})
        chart.set_y_axis({"min": 0})
        chart.set_legend({"position": "bottom"})
        chart.set_size({"width": 560, "height": 340})
        return chart

    def _requests(self, place: int, outcome: Outcome) -> None:
        # Excel tells names apart without case and forbids some characters.
        name = f"{place + 1} {outcome.label}"[:NAME_MAX]
        sheet = self._book.add_worksheet(name)
        sheet.write_row(0, 0, REQUEST_COLUMNS, self._bold)
        sheet.freeze_panes(1, 0)
        sheet.set_column(1, 1, 24)
        for row, answer in enumerate(outcome.answers, start=1):
            shown: tuple[str | float, ...] = (
                row, answer.session, answer.turn, answer.prompt_tokens, answer.cached_tokens,
                len(answer.choices), answer.ttft_s, tpot_s(answer), answer.e2e_s, answer.error,
            )  # fmt: skip
            for column, value in enumerate(shown):
                _cell(sheet, row, column, value, None)
        if outcome.answers:
            sheet.insert_chart(1, len(REQUEST_COLUMNS) + 1, self._scatter(name, outcome))

    def _scatter(self, name: str, outcome: Outcome) -> Any:
        chart = self._book.add_chart({"type": "scatter"})
        last = len(outcome.answers)
        for column in (REQUEST_COLUMNS.index("TTFT s"), REQUEST_COLUMNS.index("E2E s")):
            chart.add_series(
                {
                    "name": [name, 0, column],
                    "categories": [name, 1, 3, last, 3],
                    "values": [name, 1, column, last, column],
                }
            )
        chart.set_title({"name": f"{outcome.label}: seconds by prompt tokens"})
        chart.set_x_axis({"name": "prompt tokens", "min": 0})
        chart.set_y_axis({"name": "seconds", "min": 0})
        chart.set_size({"width": 640, "height": 400})
        return chart


def values(outcome: Outcome) -> list[str | int | float]:
    """Return a row of the sheet of data."""
    found = outcome.figures
    times = [
        asdict(getattr(found, name))[percentile] for _, name in TIMES for percentile in PERCENTILES
    ]
    return [
        outcome.label, found.requests, found.errors, different(outcome), found.wall_s,
        found.requests_per_s, found.output_tokens_per_s, found.total_tokens_per_s, found.hit_rate,
        found.could_hit_rate, *times,
    ]  # fmt: skip


def _cell(sheet: Any, row: int, column: int, value: str | float, form: Any) -> None:
    """Write a value as what it is: text of engines never becomes a formula or a link."""
    if isinstance(value, str):
        sheet.write_string(row, column, value)
    elif not math.isnan(value):
        sheet.write_number(row, column, value, form)
