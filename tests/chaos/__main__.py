"""``python -m tests.chaos --minutes 2 --seed 1 --json FILE``; exits with 1 if it found
anything."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from tests.chaos.hosts import why_not
from tests.chaos.plan import ACTS
from tests.chaos.run import Chaos


def main() -> int:
    """Run chaos; return the exit status."""
    asked = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    asked.add_argument("--minutes", type=float, default=2.0)
    asked.add_argument("--seed", type=int, default=1)
    asked.add_argument("--acts", type=int, default=ACTS, help="in a round")
    asked.add_argument("--json", type=Path, help="file for the figures")
    options = asked.parse_args()
    if why := why_not():
        print(f"chaos cannot be had here: {why}", file=sys.stderr)  # noqa: T201
        return 2
    chaos = Chaos(options.seed, lambda text: print(text, flush=True))  # noqa: T201
    report = chaos.run(options.minutes, options.acts)
    print(report.table())  # noqa: T201
    if options.json:
        options.json.write_text(json.dumps(report.as_json(), indent=1) + "\n")
    return 0 if report.good else 1


if __name__ == "__main__":
    sys.exit(main())
