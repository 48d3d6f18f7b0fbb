"""``moonpool router`` before real engines."""

from __future__ import annotations

import re
import subprocess
import sys
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.integration.processes import environment, eventually

KEY = "secret"
WAIT_S = 60.0


class Router:
    """The process and its log; ends with its context."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.log = folder / "router.log"
        command = [sys.executable, "-m", "moonpool.cli", "router", "--port", "0", *arguments]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command, stderr=log, env=environment() | {"ADMIN_API_KEY": KEY}
            )
        eventually("the router listens", self._listens, WAIT_S)
        self.url = f"http://{self._listens()}"

    def _listens(self) -> str:
        assert self.process.poll() is None, self.text()
        found = re.search(r"listens on (\S+) for", self.text())
        return found[1] if found else ""

    def text(self) -> str:
        """What it has logged."""
        return self.log.read_text(errors="replace")

    def metrics(self) -> str:
        """Return its counters."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=WAIT_S) as response:
            return str(response.read().decode())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self.process.terminate()
        self.process.wait(WAIT_S)


def count(page: str, name: str, **labels: str) -> float:
    """Return the sum of a counter's samples with these labels, in a page of the router's."""
    lines = [line for line in page.splitlines() if line.startswith(f"moonpool_router_{name}")]
    fits = [x for x in lines if all(f'{k}="{v}"' in x for k, v in labels.items())]
    return sum(float(line.rpartition(" ")[2]) for line in fits)
