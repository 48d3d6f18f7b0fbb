"""Where masters are: one address, a list of them, or a store in which they elect their leader."""

from __future__ import annotations

import dataclasses
import re
import socket
from dataclasses import dataclass
from urllib.parse import parse_qsl, urlencode

from moonpool.config_values import Check, parse_address
from moonpool.errors import ConfigError

MASTER_PORT = 50_051
ETCD_PORT = 2379
MASTERS_MAX = 16
POOL = "default"
LEASE_S_MIN = 0.5
LEASE_S_MAX = 60.0
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,62}[A-Za-z0-9])?")
_STORE = re.compile(r"(etcds?|kubernetes)://([^/?\s]+)(?:/([^/?\s]*))?(?:\?(\S*))?")

ALLOWED = (
    "etcd://host:port,host:port[/pool], etcds://... for TLS, both with "
    "?ca=FILE&cert=FILE&key=FILE&user=NAME&password_file=FILE, or kubernetes://namespace/lease"
)


@dataclass(frozen=True)
class Access:
    """How an etcd is spoken to. ca: what signed its certificate; empty: the system's. cert, key:
    what we show it. user: whose password is in password_file."""

    tls: bool = False
    ca: str = ""
    cert: str = ""
    key: str = ""
    user: str = ""
    password_file: str = ""

    def __str__(self) -> str:
        given = {k: v for k, v in dataclasses.asdict(self).items() if v and k != "tls"}
        return f"?{urlencode(given, safe='/')}" if given else ""


@dataclass(frozen=True)
class ElectionStore:
    """Where masters elect their leader.

    etcd: ``endpoints`` and the pool's name. kubernetes: the namespace and the Lease's name.
    """

    kind: str
    endpoints: tuple[tuple[str, int], ...]
    name: str
    namespace: str = ""
    access: Access = Access()

    def __str__(self) -> str:
        if self.kind == "kubernetes":
            return f"kubernetes://{self.namespace}/{self.name}"
        where = ",".join(address_text(*each) for each in self.endpoints)
        scheme = "etcds" if self.access.tls else "etcd"
        return f"{scheme}://{where}{'' if self.name == POOL else f'/{self.name}'}{self.access}"


def is_store(text: str) -> bool:
    """Tell whether a text names an election's store and not masters."""
    return "://" in text


def parse_store(text: str) -> ElectionStore:
    """Return what an ``ha`` address says; raise ValueError."""
    match = _STORE.fullmatch(text.strip())
    if match is None:
        raise ValueError("not a store of elections")
    kind, where, name = match[1], match[2], match[3] or ""
    if kind == "kubernetes":
        if match[4] is not None or not (_NAME.fullmatch(where) and _NAME.fullmatch(name)):
            raise ValueError("not namespace/lease")
        return ElectionStore(kind, (), name, where)
    if name and not _NAME.fullmatch(name):
        raise ValueError("not a pool's name")
    access = _access(match[4] or "", tls=kind == "etcds")
    return ElectionStore("etcd", _addresses(where, ETCD_PORT), name or POOL, access=access)


def _access(query: str, *, tls: bool) -> Access:
    pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=True) if query else []
    given = dict(pairs)
    known = {each.name for each in dataclasses.fields(Access)} - {"tls"}
    if len(given) < len(pairs) or set(given) - known or not all(given.values()):
        raise ValueError("an unknown option, one twice, or an empty one")
    found = Access(tls=tls, **given)
    if (found.ca or found.cert or found.key) and not tls:
        raise ValueError("certificates without TLS")
    if (found.key and not found.cert) or bool(found.user) != bool(found.password_file):
        raise ValueError("half of a pair")
    return found


def parse_masters(text: str) -> tuple[tuple[str, int], ...]:
    """Return the addresses in ``host:port[,host:port...]``; raise ValueError."""
    return _addresses(text, MASTER_PORT)


def address_text(host: str, port: int) -> str:
    """Return ``host:port``, as ``parse_address`` reads it."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _addresses(text: str, port: int) -> tuple[tuple[str, int], ...]:
    found = tuple(parse_address(each.strip(), port) for each in text.split(","))
    if len(found) > MASTERS_MAX or len(set(found)) != len(found):
        raise ValueError("too many, or one twice")
    return found


def _masters(value: object) -> str:
    """Return the text in its one form."""
    if not isinstance(value, str):
        raise TypeError("not text")
    if is_store(value):
        return str(parse_store(value))
    return ",".join(address_text(*each) for each in parse_masters(value))


def _lease_s(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise TypeError("not a number")
    if not LEASE_S_MIN <= float(value) <= LEASE_S_MAX:
        raise ValueError("out of range")
    return float(value)


def _store(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("not text")
    return str(parse_store(value)) if value else ""


masters = Check(_masters, f"host:port, several of them with commas, {ALLOWED}")
store = Check(_store, ALLOWED)
lease_s = Check(_lease_s, f"{LEASE_S_MIN} to {LEASE_S_MAX} seconds")


def advertised(host: str, advertise: str, port: int) -> str:
    """Return the host:port under which others reach who listens on host and port.

    advertise: host[:port], empty for what is listened on. Raises ConfigError.
    """
    if not advertise:
        return address_text(socket.gethostname() if host in ("0.0.0.0", "::", "") else host, port)
    try:
        return address_text(*parse_address(advertise, port))
    except ValueError:
        raise ConfigError(
            f"advertise: {advertise!r} is not allowed; allowed: host[:port]"
        ) from None
