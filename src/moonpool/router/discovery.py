"""Instances named by a file that may change at any time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from moonpool.config_sources import FILE_BYTES_MAX, read_file
from moonpool.errors import ConfigError
from moonpool.router.members import INSTANCES_MAX, Named, named

LOOK_S = 1.0
KEYS = ("url", "role", "bootstrap")
TABLE_SUFFIXES = (".json", ".toml", ".yaml", ".yml")

log = logging.getLogger("moonpool.router.discovery")

Apply = Callable[[list[Named]], None]


class Source(Protocol):
    """Who says which instances there are."""

    name: str

    async def run(self, apply: Apply) -> None:
        """Call ``apply`` with all instances whenever they change, until cancelled."""


class FileWatch:
    """Tells when a file has changed, and is not being written any more."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._taken: tuple[int, int, int] | None = None
        self._last: tuple[int, int, int] | None = None

    def changed(self) -> bool:
        """Return whether the file is another than when this last said so, and the same as at the
        last question; the first time, whether it is there."""
        try:
            found = self.path.stat()
        except OSError:
            return False
        now = (found.st_mtime_ns, found.st_size, found.st_ino)
        rests = now == self._last or self._taken is None
        self._last = now
        if now == self._taken or not rests:
            return False
        self._taken = now
        return True


class FileSource:
    """A file: one instance a line (URL, and where prefill and decode are split ROLE and BOOTSTRAP),
    or JSON, TOML or YAML with a list ``instances`` of URLs or of tables with these keys.

    A file that cannot be understood, is gone or has no lines changes nothing.
    """

    name = "file"

    def __init__(self, path: Path, look_s: float = LOOK_S) -> None:
        self._watch = FileWatch(path)
        self._look_s = look_s

    async def run(self, apply: Apply) -> None:
        """See Source."""
        while True:
            if self._watch.changed():
                try:
                    apply(read_instances(self._watch.path))
                except ConfigError as error:
                    log.error("%s; the instances stay as they are", error)
            await asyncio.sleep(self._look_s)


def read_instances(path: Path) -> list[Named]:
    """Return the instances that a file names; raise ConfigError."""
    if path.suffix in TABLE_SUFFIXES:
        listed: Any = read_file(path).get("instances")
        if not isinstance(listed, list):
            raise ConfigError(f"discovery: {path} has no list called instances")
    else:
        listed = [dict(zip(KEYS, line.split(None, 2), strict=False)) for line in _lines(path)]
        if not listed:
            raise ConfigError(f"discovery: {path} names no instance")
    if len(listed) > INSTANCES_MAX:
        raise ConfigError(f"discovery: {path} names more than {INSTANCES_MAX} instances")
    return [_named(each) for each in listed]


def _named(each: Any) -> Named:
    table = each if isinstance(each, dict) else {"url": each}
    # What is no text is no URL either, and is shown as it is.
    url, role, bootstrap = (
        value if isinstance(value := table.get(key, ""), str) else repr(value) for key in KEYS
    )
    return named(url, role, bootstrap, "discovery")


def _lines(path: Path) -> list[str]:
    try:
        if path.stat().st_size > FILE_BYTES_MAX:
            raise ConfigError(f"discovery: {path} is larger than {FILE_BYTES_MAX} bytes")
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"discovery: {path} cannot be read: {error}") from None
    return [text for line in lines if (text := line.partition("#")[0].strip())]
