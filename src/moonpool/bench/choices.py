"""From what was typed to Options."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from moonpool.bench.batch import Batch
from moonpool.bench.options import PRESETS, Options
from moonpool.errors import InvalidArgumentError

GIB = 1 << 30
COPIES = 5
"""Of a batch: what is put, what is read, the pool, and what the machine's own copy works on."""


def choose(
    *,
    preset: str = "bars",
    only: str = "",
    versus: str = "",
    mooncake_python: str = "",
    batches: Sequence[str] = (),
    clients: Sequence[int] = (),
    runs: int | None = None,
    streams: int | None = None,
) -> Options:
    """Return the preset with what was asked for. Raises InvalidArgumentError."""
    if preset not in PRESETS:
        raise InvalidArgumentError(f"--preset: {preset!r} is none of {', '.join(PRESETS)}")
    options = PRESETS[preset]
    changes: dict[str, Any] = {
        "sections": _sections(only, options.sections),
        "mooncake": _interpreter(versus, mooncake_python),
        "batches": tuple(map(_batch, batches)),
        "clients": tuple(clients),
        "runs": runs,
        "streams": streams,
    }
    options = replace(options, **{name: value for name, value in changes.items() if value})
    # The bars are for the preset's own batches.
    return replace(options, bars=False) if batches or clients else options


def _sections(only: str, known: tuple[str, ...]) -> tuple[str, ...]:
    chosen = tuple(name.strip() for name in only.split(",") if name.strip())
    for name in chosen:
        if name not in known:
            raise InvalidArgumentError(f"--only: {name!r} is none of {', '.join(known)}")
    return chosen


def _interpreter(versus: str, python: str) -> str:
    if versus not in ("", "mooncake"):
        raise InvalidArgumentError(f"--vs: {versus!r} is unknown; mooncake is known")
    return (python or sys.executable) if versus else ""


def _batch(text: str) -> Batch:
    try:
        batch = Batch.parse(text)
    except ValueError as error:
        raise InvalidArgumentError(f"--batch: {error}") from None
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if COPIES * batch.nbytes > memory:
        raise InvalidArgumentError(
            f"--batch: {text} are {batch.nbytes / GIB:,.1f} GiB; {COPIES} times that must fit "
            f"into the machine's memory, {memory / GIB:,.1f} GiB"
        )
    return batch
