"""``python -m tests.fuzz --inputs 100000 --seed 1 --json FILE``; exits with 1 if it found any."""

from __future__ import annotations

import argparse
import json
import logging
import math
import sys
import time
from pathlib import Path

from tests.fuzz.engine import fuzz
from tests.fuzz.targets import TARGETS


def main() -> int:
    """Run the targets; return the exit status."""
    asked = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    asked.add_argument("--inputs", type=int, default=20_000, help="of all targets together")
    asked.add_argument("--seed", type=int, default=1)
    asked.add_argument("--only", default="", help="targets whose name has this in it")
    asked.add_argument("--first", type=int, default=0, help="first episode, to have one again")
    asked.add_argument("--json", type=Path, help="file for the figures")
    options = asked.parse_args()
    logging.disable(logging.CRITICAL)
    chosen = [each for each in TARGETS if options.only in each.name]
    total = sum(each.share for each in chosen)
    started, results = time.monotonic(), {}
    for kind in chosen:
        count = math.ceil(options.inputs * kind.share / total)
        found = fuzz(kind(), options.seed, count, options.first)
        results[kind.name] = found.as_json()
        print(f"{kind.name}: {json.dumps(results[kind.name])}", flush=True)  # noqa: T201
        for episode, number, text in found.found[:3]:
            print(f"  episode {episode}, input {number}\n{text}", flush=True)  # noqa: T201
    report = {
        "seed": options.seed,
        "inputs": sum(each["inputs"] for each in results.values()),
        "found": sum(each["found"] for each in results.values()),
        "seconds": round(time.monotonic() - started, 1),
        "targets": results,
    }
    print(json.dumps({k: v for k, v in report.items() if k != "targets"}))  # noqa: T201
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    return 1 if report["found"] else 0


if __name__ == "__main__":
    sys.exit(main())
