"""Command lines as Mooncake's programs read them: ``-name value``, ``--name=value``, ``--noname``.

What is not known is warned about and passed over, so that a start script goes on working.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moonpool import config_values
from moonpool.errors import ConfigError

FILE_BYTES_MAX = 1 << 20
FILES_MAX = 16
INT_MAX = (1 << 63) - 1
_TRUTHS = {"true": True, "t": True, "yes": True, "y": True, "1": True} | {
    "false": False,
    "f": False,
    "no": False,
    "n": False,
    "0": False,
}
_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True)
class Flag:
    """A flag: ``kind`` is bool, int, float, str, ``ms`` (a duration) or ``size`` (bytes)."""

    kind: str
    default: Any


@dataclass(frozen=True)
class Given:
    """What was said: values by flag, and what people should be told of the rest."""

    values: dict[str, Any]
    warnings: list[str]


def parse(arguments: Iterable[str], flags: Mapping[str, Flag]) -> Given:
    """Read a command line. Raises ConfigError for a value that its flag cannot have."""
    reader = _Reader(flags)
    reader.read(list(arguments), 0)
    return Given(reader.values, reader.warnings)


class _Reader:
    def __init__(self, flags: Mapping[str, Flag]) -> None:
        self.flags = flags
        self.values: dict[str, Any] = {}
        self.warnings: list[str] = []

    def read(self, words: list[str], depth: int) -> None:
        at = 0
        while at < len(words):
            word = words[at]
            at += 1
            if word == "--":
                return
            if not word.startswith("-") or word == "-":
                self.warnings.append(f"{word!r} is passed over: it is no flag")
                continue
            name, equals, text = word.lstrip("-").partition("=")
            following = words[at] if at < len(words) else None
            at += self._take(name, text if equals else None, following, depth)

    def _take(self, name: str, text: str | None, following: str | None, depth: int) -> int:
        """Take note of a flag; return how many of the words behind it belong to it."""
        known = name if name in self.flags else name.replace("-", "_")
        used = 0
        if known == "flagfile":
            used = text is None
            self._read_file(text if text is not None else following or "", depth)
        elif known in self.flags:
            used = self._set(known, text, following)
        elif text is None and known.startswith("no") and self._is_bool(known[2:]):
            self.values[known[2:]] = False
        else:
            used = text is None and following is not None and not following.startswith("-")
            self._warn_unknown(name)
        return int(used)

    def _is_bool(self, name: str) -> bool:
        return name in self.flags and self.flags[name].kind == "bool"

    def _set(self, name: str, text: str | None, following: str | None) -> bool:
        flag = self.flags[name]
        if text is None and flag.kind == "bool":
            self.values[name] = True
            return False
        if text is None and following is None:
            raise ConfigError(f"--{name}: a value is missing")
        said = following if text is None else text
        self.values[name] = value_of(f"--{name}", flag, said)
        return text is None

    def _warn_unknown(self, name: str) -> None:
        near = difflib.get_close_matches(name, self.flags, 1, 0.7)
        hint = f"; did you mean --{near[0]}?" if near else ""
        self.warnings.append(f"--{name} is passed over: there is no such flag{hint}")

    def _read_file(self, name: str, depth: int) -> None:
        path = Path(name)
        try:
            if depth >= FILES_MAX or path.stat().st_size > FILE_BYTES_MAX:
                raise ConfigError(f"--flagfile: {path} is too large, or names itself")
            lines = [line.strip() for line in path.read_text("utf-8").splitlines()]
        except (OSError, ValueError) as error:
            raise ConfigError(f"--flagfile: {path} cannot be read: {error}") from None
        self.read([line for line in lines if line.startswith("-")], depth + 1)


def value_of(source: str, flag: Flag, said: Any) -> Any:
    """Return a flag's value from text, or from a typed file. Raises ConfigError."""
    try:
        return _value(flag.kind, said)
    except (ValueError, TypeError):
        allowed = {"ms": 'milliseconds, or text such as "10s"', "size": 'bytes, or "4 GB"'}
        what = allowed.get(flag.kind, flag.kind)
        raise ConfigError(f"{source}: {said!r} is not allowed; allowed: {what}") from None


def _value(kind: str, said: Any) -> Any:
    if kind == "bool":
        return said if isinstance(said, bool) else _truth(str(said))
    if isinstance(said, bool):
        raise ValueError("a truth value")
    if kind == "int":
        number = int(said)
        if not -INT_MAX <= number <= INT_MAX:
            raise ValueError("more than 64 bits")
        return number
    if kind == "float":
        return float(said)
    if kind == "ms":
        return _milliseconds(str(said).strip())
    if kind == "size":
        return 0 if str(said) == "0" else config_values.parse_size(said)
    return str(said)


def _milliseconds(text: str) -> float:
    number = text.rstrip("mshMSH")
    unit = text[len(number) :].lower()
    found = float(number) * (_UNITS_S[unit] * 1000 if unit else 1.0)
    if not 0 <= found < 1e12:
        raise ValueError("out of range")
    return found


def _truth(text: str) -> bool:
    if text.lower() not in _TRUTHS:
        raise ValueError("not a truth value")
    return _TRUTHS[text.lower()]
