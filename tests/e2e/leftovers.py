"""Find what a command left behind: processes, files in shared memory, directories."""

from __future__ import annotations

import contextlib
import os
import re
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

MARK = "LEFTOVER_MARK"
SETTLE_S = 10.0
SAMPLE_S = 0.3
SHARED_MEMORY = Path("/dev/shm")


class Leftovers:
    """Marks a command's environment, which its children inherit, and looks for the mark.

    Names of shared memory are random: which of it was the command's is seen, again and again
    while it runs, from what marked processes map.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._mark = uuid.uuid4().hex
        self._mapped: set[str] = set()

    def environment(self) -> dict[str, str]:
        """Return the variables to start the command with; its files go to the directory."""
        temporary, cache = self._directory / "tmp", self._directory / "cache"
        temporary.mkdir(exist_ok=True)
        clean = {name: value for name, value in os.environ.items() if "MOON" not in name}
        return {
            **clean,
            MARK: self._mark,
            "TMPDIR": str(temporary),
            "XDG_CACHE_HOME": str(cache),
            "PYTHONUNBUFFERED": "1",
        }

    def processes(self) -> list[int]:
        """Return the ids of living processes that carry the mark."""
        found = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                if f"{MARK}={self._mark}".encode() in path.read_bytes():
                    found.append(int(path.parent.name))
        return found

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Note what marked processes map, for as long as the context lasts."""
        stop = threading.Event()

        def watch() -> None:
            while not stop.wait(SAMPLE_S):
                self._note_mapped()

        thread = threading.Thread(target=watch)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    def _note_mapped(self) -> None:
        for pid in self.processes():
            with contextlib.suppress(OSError):
                maps = Path(f"/proc/{pid}/maps").read_text()
                self._mapped.update(re.findall(rf"{SHARED_MEMORY}/(\S+)", maps))

    def check(self, pid: int) -> None:
        """Assert that nothing is left of the command with this process id."""
        deadline = time.monotonic() + SETTLE_S
        while self.processes() and time.monotonic() < deadline:
            time.sleep(0.1)
        assert self.processes() == []
        for parent in (SHARED_MEMORY, Path("/tmp"), self._directory / "tmp"):
            assert list(parent.glob(f"moonpool-run-{pid}-*")) == []
        assert [name for name in self._mapped if (SHARED_MEMORY / name).exists()] == []
