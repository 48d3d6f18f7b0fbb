"""What a benchmark prints and writes."""

from __future__ import annotations

import platform
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from moonpool.bench.store import Row

if TYPE_CHECKING:
    from rich.table import Table


def table(rows: list[Row]) -> Table:
    """Return the rows as a table for people."""
    from rich.table import Table

    shown = Table("what", "measured", "held against", "ratio", "wanted", "")
    for row in rows:
        ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
        mark = "" if row.ok is None else ("yes" if row.ok else "NO")
        shown.add_row(row.what, f"{row.value:.2f} {row.unit}", row.against, ratio, row.wanted, mark)
    return shown


def as_json(rows: list[Row], copies: str) -> dict[str, Any]:
    """Return the rows and the circumstances, for a file."""
    return {
        "machine": platform.machine(),
        "python": platform.python_version(),
        "copies": copies,
        "rows": [asdict(row) for row in rows],
    }
