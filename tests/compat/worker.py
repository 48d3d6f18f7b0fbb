"""Runs cases in an interpreter that has some ``mooncake.store``, and says how they went.

``worker.py MASTER BYTES``: a client that lends so many bytes. One JSON object a line on standard
input: ``{"case": name}``; one a line on standard output. Needs the standard library and NumPy only.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any, TextIO


def main(master: str, nbytes: int, owner: str) -> None:
    """Answer until the other end is closed."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    sys.path.insert(0, str(Path(__file__).parents[2]))
    from tests.compat.cases import bed

    api = bed.Api(master, owner)
    code = api.connect(nbytes)
    _say(answers, {"code": code, "name": api.store.get_hostname() if code == 0 else ""})
    for line in sys.stdin:
        _say(answers, _answer(api, json.loads(line)))
    api.close()
    answers.close()
    os._exit(0)


def _answer(api: Any, asked: dict[str, Any]) -> dict[str, Any]:
    from tests.compat.cases import load

    try:
        if not asked["case"].startswith("plain."):
            api.before()
        found = load()[asked["case"]](api, **asked.get("arguments", {}))
        api.after()
    except ModuleNotFoundError as error:
        return {"error": "", "skipped": str(error)}
    except BaseException:  # noqa: BLE001 - told to the test
        return {"error": traceback.format_exc()}
    return {"error": "", "found": found}


def _say(answers: TextIO, what: dict[str, Any]) -> None:
    answers.write(json.dumps(what) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
