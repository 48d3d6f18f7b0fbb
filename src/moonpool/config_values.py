"""How configuration values are read and checked, from text or from typed files."""

from __future__ import annotations

import ipaddress
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SIZE_BYTES_MAX = 1 << 50
SECONDS_MAX = 86_400.0

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)
_SHIFTS = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}
_BOOLEANS = {"true": True, "yes": True, "on": True, "1": True} | {
    "false": False,
    "no": False,
    "off": False,
    "0": False,
}


@dataclass(frozen=True)
class Check:
    """Reads a value: ``parse`` raises ValueError or TypeError for what is not ``allowed``."""

    parse: Callable[[Any], Any]
    allowed: str


def parse_size(value: object) -> int:
    """Return bytes of ``4096``, ``"64KB"``, ``"1.5 GiB"``; units are powers of 1024.

    Raises ValueError for anything else, zero, and more than a pebibyte.
    """
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError("not a size")
    if isinstance(value, str):
        match = _SIZE.fullmatch(value.strip())
        if match is None:
            raise ValueError("not a size")
        size = float(match[1]) * (1 << _SHIFTS[match[2].lower()])
        value = int(min(size, SIZE_BYTES_MAX + 1))
    if not 0 < value <= SIZE_BYTES_MAX:
        raise ValueError("out of range")
    return value


def parse_rate(value: object) -> int:
    """Return bytes a second of ``"500MB"``, or of 0 for any; raise ValueError otherwise."""
    return 0 if value in (0, "0") and not isinstance(value, bool) else parse_size(value)


def parse_address(value: str, default_port: int | None = None) -> tuple[str, int]:
    """Return (host, port) of ``host:port`` or ``[v6]:port``; raise ValueError otherwise."""
    match = re.fullmatch(r"(?:\[([0-9A-Fa-f:.%\w]+)\]|([^\s:\[\]/@]+))(?::(\d{1,5}))?", value)
    if match is None or (match[3] is None and default_port is None):
        raise ValueError("not host:port")
    chosen = int(match[3]) if match[3] is not None else int(default_port or 0)
    if not 0 < chosen <= 65_535:
        raise ValueError("not a port")
    return match[1] or match[2], chosen


def _int(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError("not a whole number")
    return int(value)


def _between(low: float, high: float, whole: bool) -> Callable[[Any], Any]:
    def parse(value: Any) -> int | float:
        if isinstance(value, bool):
            raise ValueError("not a number")
        found = _int(value) if whole else float(value)
        if not (low <= found <= high and math.isfinite(found)):
            raise ValueError("out of range")
        return found

    return parse


def _text(value: Any) -> str:
    if not isinstance(value, str) or any(ord(c) < 32 for c in value):
        raise ValueError("not text")
    return value


def _boolean(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    text = value.lower() if isinstance(value, str) else ""
    return _BOOLEANS[text] if text in _BOOLEANS else _refuse()


def _refuse() -> bool:
    raise ValueError("not a truth value")


def _texts(value: Any) -> tuple[str, ...]:
    parts = value.split(",") if isinstance(value, str) else list(value)
    return tuple(_text(part).strip() for part in parts if part)


def _address(value: Any) -> str:
    host, port_number = parse_address(_text(value).strip(), 50_051)
    return f"[{host}]:{port_number}" if ":" in host else f"{host}:{port_number}"


def number(low: int, high: int) -> Check:
    """Return the check for whole numbers from low to high."""
    return Check(_between(low, high, True), f"{low} to {high}")


def choice_of(*names: str) -> Check:
    """Return the check for one or more of the names, in any order, each once."""

    def parse(value: Any) -> tuple[str, ...]:
        chosen = _texts(value)
        if not chosen or len(set(chosen)) != len(chosen) or not set(chosen) <= set(names):
            raise ValueError("not among the choices")
        return chosen

    return Check(parse, f"one or more of {', '.join(names)}")


def some_of(*names: str) -> Check:
    """Return the check for any number of the names, also none, each once."""

    def parse(value: Any) -> tuple[str, ...]:
        chosen = _texts(value)
        if len(set(chosen)) != len(chosen) or not set(chosen) <= set(names):
            raise ValueError("not among the choices")
        return chosen

    return Check(parse, f"any of {', '.join(names)}")


def settings_of(prefix: str) -> Check:
    """Return the check for ``KEY=VALUE`` settings with a prefix, with blanks between them."""

    def parse(value: Any) -> tuple[str, ...]:
        parts = _text(value).split() if isinstance(value, str) else [_text(v) for v in value]
        for part in parts:
            if not re.fullmatch(rf"{prefix}[A-Z0-9_]+=\S*", part):
                raise ValueError("not a setting")
        return tuple(parts)

    return Check(parse, f"{prefix}KEY=VALUE, several with blanks between them")


def one_of(*names: str) -> Check:
    """Return the check for exactly one of the names."""

    def parse(value: Any) -> str:
        if value not in names:
            raise ValueError("not among the choices")
        return str(value)

    return Check(parse, f"one of {', '.join(names)}")


def _new_file(value: object) -> str:
    path = _text(value)
    if path and not Path(path).absolute().parent.is_dir():
        raise ValueError("no such directory")
    return path


port = Check(_between(0, 65_535, True), "0 to 65535")
fraction = Check(_between(0.0, 1.0, False), "0.0 to 1.0")
seconds = Check(_between(0.001, SECONDS_MAX, False), f"0.001 to {SECONDS_MAX:.0f} seconds")
seconds_or_none = Check(_between(0.0, SECONDS_MAX, False), f"0 to {SECONDS_MAX:.0f} seconds")
size = Check(parse_size, 'bytes, or a number with KB, MB, GB or TB, such as "4GB"')
rate = Check(parse_rate, 'bytes a second, such as "500MB", or 0 for any')
text = Check(_text, "text without control characters")
new_file = Check(_new_file, "a file in a directory that exists")
texts = Check(_texts, "a list, or text with commas")
boolean = Check(_boolean, "true or false")
address = Check(_address, "host:port")


def is_loopback(host: str) -> bool:
    """Tell whether only this machine reaches an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
