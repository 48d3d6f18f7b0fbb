"""Measures the Mooncake API of moonpool beside Mooncake's wheel: ``python -m tests.compat.speed``.

Prints a table. A process asks, another lends the segment, both on this host; Mooncake over TCP.
"""

from __future__ import annotations

import tempfile
from contextlib import AbstractContextManager
from pathlib import Path

from tests.compat.beds import REAL, Bed, WorkerGoneError, mooncake_bed, moonpool_bed

SEGMENT = 2 << 30
LEASE_MS = 10_000
CASES: tuple[tuple[str, dict[str, int]], ...] = (
    ("speed.small", {}),
    ("speed.large", {"mebibytes": 1}),
    ("speed.large", {"mebibytes": 4}),
    ("speed.large", {"mebibytes": 16}),
    ("speed.lookups", {}),
    ("speed.pieces", {}),
)


def measured(making: AbstractContextManager[Bed]) -> dict[str, str]:
    """Return the figures of one implementation."""
    found: dict[str, str] = {}
    with making as bed:
        bed.owner = bed.start("owner", SEGMENT, "")
        for case, arguments in CASES:
            try:
                figures = bed.run(case, **arguments)
            except (AssertionError, WorkerGoneError) as error:
                found[case] = str(error).strip().splitlines()[-1][:60]
                continue
            found |= {name: f"{value:.2f}" for name, value in figures.items()}
    return found


def main() -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        ours = measured(moonpool_bed(Path(one), LEASE_MS))
        theirs = measured(mooncake_bed(Path(other), LEASE_MS)) if REAL else {}
    lines = ["| | moonpool | Mooncake |", "|---|---|---|"]
    lines += [
        f"| {name} | {ours.get(name, '')} | {theirs.get(name, '')} |" for name in {**ours, **theirs}
    ]
    print("\n".join(lines))  # noqa: T201


if __name__ == "__main__":
    main()
