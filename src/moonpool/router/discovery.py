"""Instances named by a file that may change at any time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from moonpool.config_sources import FILE_BYTES_MAX, read_file
from moonpool.errors import ConfigError
from moonpool.router.members import INSTANCES_MAX, checked_url

LOOK_S = 1.0
TABLE_SUFFIXES = (".json", ".toml", ".yaml", ".yml")

log = logging.getLogger("moonpool.router.discovery")

Apply = Callable[[list[str]], None]


class Source(Protocol):
    """Who says which instances there are."""

    name: str

    async def run(self, apply: Apply) -> None:
        """Call ``apply`` with all base URLs whenever they change, until cancelled."""


class FileWatch:
    """Tells when a file has changed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._seen: tuple[int, int, int] | None = None

    def changed(self) -> bool:
        """Return whether the file is another than when it was last asked about."""
        try:
            found = self.path.stat()
        except OSError:
            return False
        now = (found.st_mtime_ns, found.st_size, found.st_ino)
        before, self._seen = self._seen, now
        return now != before


class FileSource:
    """A file: one URL a line, or JSON, TOML or YAML with a list ``instances`` of URLs.

    A file that cannot be understood, or is gone, changes nothing.
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
                    apply(read_urls(self._watch.path))
                except ConfigError as error:
                    log.error("%s; the instances stay as they are", error)
            await asyncio.sleep(self._look_s)


def read_urls(path: Path) -> list[str]:
    """Return the base URLs that a file names; raise ConfigError."""
    if path.suffix in TABLE_SUFFIXES:
        named: Any = read_file(path).get("instances")
        if not isinstance(named, list):
            raise ConfigError(f"discovery: {path} has no list called instances")
    else:
        named = _lines(path)
    if len(named) > INSTANCES_MAX:
        raise ConfigError(f"discovery: {path} names more than {INSTANCES_MAX} instances")
    urls = [each.get("url") if isinstance(each, dict) else each for each in named]
    # What is no text is no URL either, and is shown as it is.
    return [checked_url(url if isinstance(url, str) else repr(url), "discovery") for url in urls]


def _lines(path: Path) -> list[str]:
    try:
        if path.stat().st_size > FILE_BYTES_MAX:
            raise ConfigError(f"discovery: {path} is larger than {FILE_BYTES_MAX} bytes")
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"discovery: {path} cannot be read: {error}") from None
    return [text for line in lines if (text := line.partition("#")[0].strip())]
