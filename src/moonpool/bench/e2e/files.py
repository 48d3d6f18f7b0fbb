"""What a run writes, and whether it can, which is better known before minutes have passed."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from moonpool.bench.e2e import page, plots
from moonpool.bench.e2e.compare import ratio_rows
from moonpool.errors import ConfigError
from moonpool.trace_line import Line
from moonpool.workload.write import written


@dataclass(frozen=True, slots=True)
class Files:
    """Where to write; None: not at all. figures: a directory."""

    json: Path | None = None
    html: Path | None = None
    figures: Path | None = None
    sent: Path | None = None

    def check(self) -> None:
        """Raise ConfigError for what cannot be written."""
        if self.html is not None or self.figures is not None:
            plots.require()
        for key, path in (("json", self.json), ("html", self.html), ("sent", self.sent)):
            if path is not None and not _can_write(path):
                raise ConfigError(f"{key}: {path} cannot be written; allowed: a file")
        if self.figures is not None:
            _attempt("figures", self.figures, lambda path: path.mkdir(parents=True, exist_ok=True))

    def write(self, found: Any, sent: Sequence[Line]) -> None:
        """Write a run; raise ConfigError."""
        if self.json is not None:
            text = json.dumps(found, indent=1) + "\n"
            _attempt("json", self.json, lambda path: _whole(path, text))
        if self.html is not None:
            text_of_page = page.page(found)
            _attempt("html", self.html, lambda path: _whole(path, text_of_page))
        if self.sent is not None:
            _attempt("sent", self.sent, lambda path: written(sent, path))
        self._draw([(found["label"] or "this run", found)])

    def write_comparison(self, first: plots.Run, second: plots.Run) -> None:
        """Write two runs side by side; raise ConfigError."""
        if self.html is not None:
            text = page.comparison_page(first, second)
            _attempt("html", self.html, lambda path: _whole(path, text))
        if self.json is not None:
            rows = [dict(zip(("figure", "first", "second", "better"), each, strict=True))
                    for each in ratio_rows(first[1], second[1])]  # fmt: skip
            data = {"first": first[0], "second": second[0], "rows": rows}
            _attempt("json", self.json, lambda path: _whole(path, json.dumps(data, indent=1)))
        self._draw([first, second])

    def _draw(self, runs: Sequence[plots.Run]) -> None:
        for title, figure in plots.figures(runs) if self.figures is not None else ():
            assert self.figures is not None
            name = title.lower().replace("'", "").replace(" ", "-")
            path = self.figures / f"{name}.png"
            _attempt("figures", path, partial(_picture, plots.rendered(figure, "png")))


def _can_write(path: Path) -> bool:
    if path.exists():
        return path.is_file() and os.access(path, os.W_OK)
    return path.parent.is_dir() and os.access(path.parent, os.W_OK)


def _picture(data: bytes, path: Path) -> None:
    path.write_bytes(data)


def _whole(path: Path, text: str) -> None:
    path.write_text(text)


def _attempt(key: str, path: Path, work: Callable[[Path], object]) -> None:
    try:
        work(path)
    except OSError as error:
        reason = error.strerror or error
        raise ConfigError(f"{key}: {path} cannot be written: {reason}") from None
