# ruff: noqa: T201
"""Shows what a traced run noted: ``python bench/gpu/timeline.py trace.jsonl.gz [--from TOKENS]``.

A request's lines carry milliseconds since it came to its engine; sums are of what the engine did
since it last rested: calls, milliseconds, the longest one.
"""

from __future__ import annotations

import argparse
import gzip
import json
from pathlib import Path
from typing import Any

SHOWN_S = 3.0


def main() -> None:
    """Print the requests of a trace."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--from", type=int, default=2000, dest="least", help="tokens of a request")
    parser.add_argument("--sums", action="store_true", help="only the sums")
    options = parser.parse_args()
    with gzip.open(options.trace, "rt") as file:
        lines = [json.loads(line) for line in file]
    for number, (at, pid, what, took, detail) in enumerate(lines):
        if what == "sums":
            print(f"{at:.3f} {pid} " + "  ".join(f"{k} {v}" for k, v in detail.items()))
        elif what == "add" and detail[1] >= options.least and not options.sums:
            print(f"{at:.3f} {pid} request {detail[0]} of {detail[1]} tokens, added in {took} ms")
            follow(lines[number + 1 :], at)


def follow(lines: list[list[Any]], since: float) -> None:
    """Print what was noted until the next request comes."""
    for at, pid, what, took, detail in lines:
        if what in ("add", "sums") or at - since > SHOWN_S:
            return
        spent = "" if took is None else f" took {took}"
        print(f"    {(at - since) * 1e3:9.2f} {pid} {what}{spent} {json.dumps(detail)}"[:150])


if __name__ == "__main__":
    main()
