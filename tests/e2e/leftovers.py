"""Find what a command left behind: processes, files in shared memory, directories."""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path

MARK = "LEFTOVER_MARK"
SETTLE_S = 10.0


@dataclass(frozen=True)
class Leftovers:
    """Marks a command's environment, which its children inherit, and looks for the mark."""

    directory: Path
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)

    def environment(self) -> dict[str, str]:
        """Return the variables to start the command with; its files go to ``directory``."""
        temporary, cache = self.directory / "tmp", self.directory / "cache"
        temporary.mkdir(exist_ok=True)
        clean = {name: value for name, value in os.environ.items() if "MOON" not in name}
        return {
            **clean,
            MARK: self.mark,
            "TMPDIR": str(temporary),
            "XDG_CACHE_HOME": str(cache),
            "PYTHONUNBUFFERED": "1",
        }

    def processes(self) -> list[int]:
        """Return the ids of living processes that carry the mark."""
        found = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                if f"{MARK}={self.mark}".encode() in path.read_bytes():
                    found.append(int(path.parent.name))
        return found

    def check(self, pid: int) -> None:
        """Assert that nothing is left of the command with this process id."""
        deadline = time.monotonic() + SETTLE_S
        while self.processes() and time.monotonic() < deadline:
            time.sleep(0.1)
        assert self.processes() == []
        assert list(Path("/dev/shm").glob(f"moonpool-run-{pid}-*")) == []
        assert list((self.directory / "tmp").glob("moonpool-run-*")) == []
