"""Records what Mooncake's wheel makes of random arguments: ``python -m tests.compat.record``."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.compat.beds import HERE, REAL, WHY_NOT_REAL, Bed, WorkerGoneError, mooncake_bed
from tests.compat.cases.arguments import Call, calls

RECORDED = HERE / "recorded.json"
SEED, COUNT = 1, 2000
CRASH = "crash"


def outcomes(bed: Bed, made: list[Call]) -> list[Any]:
    """Return what came of each call; the process is started again after one that ended it."""
    if not made:
        return []
    try:
        found: list[Any] = bed.run("random_calls.outcomes", calls=made)
    except WorkerGoneError:
        if len(made) == 1:
            return [CRASH]
        half = len(made) // 2
        return outcomes(bed, made[:half]) + outcomes(bed, made[half:])
    return found


def main() -> None:
    """Write the file."""
    if not REAL:
        sys.exit(WHY_NOT_REAL)
    made = calls(SEED, COUNT)
    with tempfile.TemporaryDirectory() as folder, mooncake_bed(Path(folder), 600_000) as bed:
        names = bed.run("plain.names")
        found = [each for i in range(0, COUNT, 100) for each in outcomes(bed, made[i : i + 100])]
    lines = ",\n".join(json.dumps(each) for each in made)
    told = ",\n".join(json.dumps(each) for each in found)
    said = json.dumps(names)
    RECORDED.write_text(
        f'{{"calls": [\n{lines}\n],\n"outcomes": [\n{told}\n],\n"names": {said}}}\n'
    )
    print(f"{COUNT} calls, {found.count(CRASH)} of them ended the process")  # noqa: T201


if __name__ == "__main__":
    main()
