"""A lone master's epoch: higher than that of any master before it on its port.

Epochs are seconds since 1970, and a master serves from a second before its own begins. So one that
knows nothing of those before has to wait for up to a second; one that finds the last epoch written
down by them does not.
"""

from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path
from typing import NamedTuple

SET_BACK_S = 2.0
"""An epoch that is further ahead of the clock was made before the clock was set back."""
_OLD_S = 86_400.0
_TEXT_MAX = 32

log = logging.getLogger("moonpool.master")


class Epoch(NamedTuple):
    """An epoch, and how long to wait before anybody is served in it."""

    number: int
    wait_s: float


def next_epoch(last: int | None, now_s: float) -> Epoch:
    """Return an epoch. last: what the master before has written down. The port is ours by now: it
    is dead, and served at or after ``last - 1``."""
    second = int(now_s)
    if last is None:
        return Epoch(second + 2, second + 1 - now_s)
    number = max(second + 1, last + 1)
    wait_s = number - 1 - now_s
    return Epoch(number, max(0.0, wait_s) if wait_s <= SET_BACK_S else 0.0)


def take_epoch(directory: str | os.PathLike[str], port: int, now_s: float) -> Epoch:
    """Return the next epoch of a port, and write it down for the next master of this host."""
    path = _path(directory, port)
    epoch = next_epoch(_read(path), now_s)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft = path.with_name(f"{path.name}.{os.getpid()}")
        draft.write_text(str(epoch.number))
        draft.replace(path)
        _sweep(path, now_s)
    except OSError as error:
        # The next one must not believe an older number.
        with contextlib.suppress(OSError):
            path.unlink()
        log.warning("%s cannot be written: %s; a restart takes a second longer", path, error)
        return Epoch(epoch.number, epoch.number - now_s)
    return epoch


def forget_epoch(directory: str | os.PathLike[str], port: int) -> None:
    """Leave nothing behind at a clean end; the next master waits for its second again."""
    with contextlib.suppress(OSError):
        _path(directory, port).unlink()


def _path(directory: str | os.PathLike[str], port: int) -> Path:
    return Path(directory) / f"epoch-{port}"


def _sweep(own: Path, now_s: float) -> None:
    """Remove what masters of other ports have left that were killed long ago."""
    for path in own.parent.glob("epoch-*"):
        with contextlib.suppress(OSError):
            if path != own and now_s - path.stat().st_mtime > _OLD_S:
                path.unlink()


def _read(path: Path) -> int | None:
    try:
        with path.open() as file:
            text = file.read(_TEXT_MAX)
    except (OSError, ValueError):
        return None
    return int(text) if text.isdecimal() else None
