"""A whole run: section by section, on the screen and into a file."""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moonpool import __version__
from moonpool.bench import report
from moonpool.bench.options import MATRIX_SECTIONS, Options
from moonpool.bench.report import Row
from moonpool.bench.store import measure
from moonpool.bench.tally import Tally
from moonpool.errors import InvalidArgumentError

if TYPE_CHECKING:
    from rich.console import Console

FORMAT = 2
PIPE_COLUMNS = 200


@dataclass(slots=True)
class Results:
    """What was measured, by section."""

    sections: dict[str, dict[str, Any]] = field(default_factory=dict)

    @classmethod
    def read(cls, file: Path | None) -> Results:
        """Return what a file of an earlier run holds. Raises InvalidArgumentError."""
        if file is None or not file.exists():
            return cls()
        try:
            found = json.loads(file.read_text())
            if found["format"] != FORMAT:
                raise ValueError
            return cls(dict(found["sections"]))
        except (OSError, ValueError, KeyError, TypeError):
            raise InvalidArgumentError(f"{file} holds no results of this benchmark") from None

    def add(
        self, section: str, rows: list[Row], tally: Tally, seconds: float, *, complete: bool
    ) -> None:
        """Replace a section; one that is not complete is measured again by ``--resume``."""
        self.sections[section] = {
            "date": time.strftime("%Y-%m-%d %H:%M:%S"),
            "took_s": round(seconds, 1),
            "complete": complete,
            "copies": tally.copies,
            "verified_bytes": tally.verified,
            "mismatches": tally.mismatches,
            "rows": report.as_dicts(rows),
        }

    def has(self, section: str) -> bool:
        """Tell whether a section has been measured to its end."""
        return bool(self.sections.get(section, {}).get("complete"))

    def rows(self) -> list[Row]:
        """Return all rows."""
        return [row for each in self.sections.values() for row in report.from_dicts(each["rows"])]

    def wrong(self, sections: Iterable[str]) -> int:
        """Return how many bytes came back wrong in some of the sections."""
        return sum(sum(self.sections[name]["mismatches"].values()) for name in sections)

    def write(self, file: Path | None) -> None:
        """Write everything, with the circumstances. Raises InvalidArgumentError."""
        if file is None:
            return
        part = file.with_suffix(".part")
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            part.write_text(json.dumps(self.as_json(), indent=1) + "\n")
            part.replace(file)
        except OSError as error:
            raise InvalidArgumentError(f"{file}: {error.strerror}") from None

    def as_json(self) -> dict[str, Any]:
        """Return everything, with the circumstances."""
        return {
            "format": FORMAT,
            "moonpool": __version__,
            "machine": machine(),
            "notes": report.footnotes(self.rows()),
            "sections": self.sections,
        }


def run(options: Options, file: Path | None, *, resume: bool = False) -> int:
    """Measure all sections and print them; return how many bytes came back wrong."""
    from rich.console import Console

    console = Console(highlight=False)
    results = Results.read(file)
    results.write(file)  # where that is not possible, it is known before minutes have passed
    for section in options.sections:
        if resume and results.has(section):
            continue
        began = time.monotonic()
        tally = Tally()
        rows: list[Row] = []
        for row in measure(section, options, tally):
            rows.append(row)
            console.print(report.line(row), style="dim", markup=False, soft_wrap=True)
            results.add(section, rows, tally, time.monotonic() - began, complete=False)
            results.write(file)
        results.add(section, rows, tally, time.monotonic() - began, complete=True)
        results.write(file)
        console.print(f"{section}: {tally}")
    chosen = [name for name in results.sections if name in options.sections]
    return show(results, chosen, console)


def show(results: Results, sections: Sequence[str], console: Console) -> int:
    """Print the tables of some sections; return how many bytes came back wrong."""
    rows = [row for row in results.rows() if row.section in sections]
    cells = [row for row in rows if row.section in MATRIX_SECTIONS]
    if not console.is_terminal:
        console.width = PIPE_COLUMNS
    if len(cells) < len(rows):
        console.print(report.table([row for row in rows if row.section not in MATRIX_SECTIONS]))
    if cells:
        console.print(report.matrix_table(cells))
    for text in report.footnotes(rows):
        console.print(text, highlight=False, style="dim")
    asked, wrong = [row for row in rows if row.bar], results.wrong(sections)
    met = sum(bool(row.met) for row in asked)
    console.print(f"bars met: {met} of {len(asked)}; bytes wrong: {wrong}", highlight=False)
    return wrong


def show_file(file: Path, *, markdown: bool = False, as_json: bool = False) -> None:
    """Print the tables of an earlier run, or its rows. Raises InvalidArgumentError."""
    from rich.console import Console

    if not file.exists():
        raise InvalidArgumentError(f"{file} is not there")
    results = Results.read(file)
    if as_json:
        sys.stdout.write(json.dumps(report.as_dicts(results.rows()), indent=2) + "\n")
    elif markdown:
        sys.stdout.write(report.markdown(results.rows()) + "\n")
    else:
        show(results, list(results.sections), Console())


def machine() -> dict[str, Any]:
    """Return what the figures depend on."""
    model = ""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }
