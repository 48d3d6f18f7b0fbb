"""Traces that are tables of lengths: BurstGPT's and Azure's CSV files. They say nothing of what
prompts are made of."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from moonpool.workload.lines import BAD_LINE, Lines, Problems, TraceError
from moonpool.workload.request import Request, Strangers

BLOCK_TOKENS = 16
AZURE = ("timestamp", "contexttokens", "generatedtokens", "")
BURST = ("timestamp", "request tokens", "response tokens", "session id")


def columns_of(header: bytes) -> list[str]:
    """Return the names of a table's columns in lower case."""
    text = header.decode("utf-8-sig", errors="replace")
    return [name.strip().lower() for name in next(csv.reader([text]), [])]


def read_azure(
    path: Path, lines: Lines, problems: Problems, block_tokens: int
) -> Iterator[Request]:
    """Yield the requests of an Azure table; its times are dates, the first one is 0."""
    return _read(path, lines, problems, block_tokens, AZURE, _date_s)


def read_burst(
    path: Path, lines: Lines, problems: Problems, block_tokens: int
) -> Iterator[Request]:
    """Yield the requests of a BurstGPT table; its times are seconds."""
    return _read(path, lines, problems, block_tokens, BURST, float)


def _date_s(text: str) -> float:
    # Seven digits of a second are written; six can be read.
    head, dot, rest = text.strip().partition(".")
    digits = len(rest) - len(rest.lstrip("0123456789"))
    whole = f"{head}{dot}{rest[: min(digits, 6)]}{rest[digits:]}"
    found = datetime.fromisoformat(whole)
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


def _read(
    path: Path,
    lines: Lines,
    problems: Problems,
    block_tokens: int,
    names: tuple[str, str, str, str],
    seconds: Callable[[str], float],
) -> Iterator[Request]:
    number, header = next(lines)
    columns = columns_of(header)
    missing = [name for name in names[:3] if name not in columns]
    if missing:
        raise TraceError(f"{path}:{number}: no column {missing[0]!r}")
    when, inputs, outputs, session = (columns.index(n) if n in columns else -1 for n in names)
    strangers, began_s = Strangers(block_tokens), None
    for number, line in lines:
        try:
            cells = next(csv.reader([line.decode()]))
            if len(cells) < len(columns):
                raise ValueError(f"{len(cells)} cells for {len(columns)} columns")
            time_s = seconds(cells[when])
            began_s = time_s if began_s is None else began_s
            lengths = int(cells[inputs]), int(cells[outputs])
            name = cells[session] if session >= 0 else ""
            request = strangers.request_of(time_s - began_s, lengths, session=name)
        except (*BAD_LINE, csv.Error, StopIteration) as error:
            problems.note(path, number, error)
        else:
            yield request
