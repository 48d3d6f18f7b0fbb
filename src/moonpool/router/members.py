"""The instances that the router knows, and how they come and go."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import urlsplit

from moonpool.errors import ConfigError
from moonpool.router.index import PrefixIndex
from moonpool.router.instance import BOTH, ROLES, EngineFacts, Instance
from moonpool.router.latency import LatencyModel

INSTANCES_MAX = 512
PORT_CHARS_MAX = 5


def checked_url(text: str, key: str = "url") -> str:
    """Return a base URL without its last slash; raise ConfigError for what is none."""
    try:
        parts = urlsplit(text)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        usable = False
    plain = usable and not (parts.query or parts.fragment or parts.username or parts.password)
    if not plain or not text.isprintable() or " " in text:
        raise ConfigError(f"{key}: {text!r} is no base URL; allowed: http://HOST:PORT")
    return text.rstrip("/")


@dataclass(frozen=True, slots=True)
class Named:
    """An instance as somebody names it, checked: see ``named``."""

    url: str
    role: str = BOTH
    bootstrap: str = ""


def named(url: str, role: str = "", bootstrap: str = "", key: str = "url") -> Named:
    """Return a checked instance. role: one of ROLES, also with "kv_" before it as vLLM writes it,
    "" for both. bootstrap: a port on the instance's host, or a base URL. Raises ConfigError."""
    url = checked_url(url, key)
    plain = {"kv_producer": "prefill", "kv_consumer": "decode", "kv_both": BOTH}.get(role, role)
    if plain and plain not in ROLES:
        raise ConfigError(f"{key}: role {role!r} is not allowed; allowed: {', '.join(ROLES)}")
    return Named(url, plain or BOTH, _bootstrap(url, bootstrap, key))


def _bootstrap(url: str, text: str, key: str) -> str:
    if not text or text.lower() == "none":
        return ""
    if text.isascii() and text.isdigit():
        if len(text) > PORT_CHARS_MAX or not 0 < int(text) <= 65_535:
            raise ConfigError(f"{key}: bootstrap {text!r} is no port; allowed: 1 to 65535")
        host = urlsplit(url).hostname or ""
        return f"http://[{host}]:{int(text)}" if ":" in host else f"http://{host}:{int(text)}"
    return checked_url(text if "://" in text else f"http://{text}", f"{key}: bootstrap")


def _is_local(host: str) -> bool:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified


class Members:
    """Instances in the order in which they joined. A request that runs on one that has left goes
    on to its end; nothing new is sent there.

    fleet: what was learned of all of them; a new one begins with it. own: where the router itself
    listens.
    """

    def __init__(self, index: PrefixIndex) -> None:
        self.instances: list[Instance] = []
        self.fleet = LatencyModel()
        self.own: tuple[str, int] = "", 0
        self.version = 0
        self._index = index

    def find(self, url: str) -> Instance | None:
        """Return the instance of a URL, if it is known."""
        url = url.rstrip("/")
        return next((each for each in self.instances if each.url == url), None)

    def add(self, which: str | Named, source: str = "config") -> Instance:
        """Return the instance of that URL, new or known; a draining one is in use again, and one
        that is named with another role has it from now on.

        Raises ConfigError for what is no URL, for the router's own, and for more than INSTANCES_MAX
        instances.
        """
        each = named(which) if isinstance(which, str) else which
        if self._is_own(each.url):
            raise ConfigError(f"url: {each.url} is the router itself; allowed: an engine's")
        known = self.find(each.url)
        if known is None:
            known = self._new(each.url, source)
        known.draining = False
        known.role, known.bootstrap = each.role, each.bootstrap
        return known

    def _is_own(self, url: str) -> bool:
        """Tell whether a URL is plainly the router's. Other names of it are found out when it is
        sent its own requests."""
        parts, (host, port) = urlsplit(url), self.own
        if not port or (parts.port or {"http": 80}.get(parts.scheme, 443)) != port:
            return False
        name = parts.hostname or ""
        return name in (host, "localhost", socket.gethostname()) or _is_local(name)

    def _new(self, url: str, source: str) -> Instance:
        if len(self.instances) >= INSTANCES_MAX:
            raise ConfigError(f"instances: {INSTANCES_MAX} are allowed")
        taken = {each.mark for each in self.instances}
        mark = next(number for number in range(INSTANCES_MAX + 1) if number not in taken)
        self._index.clear(mark)
        new = Instance(url, mark, source, model=LatencyModel(self.fleet))
        self.instances = [*self.instances, new]
        self.version += 1
        return new

    def drain(self, url: str) -> Instance | None:
        """Send nothing new to an instance; return it, or None if it is not known."""
        known = self.find(url)
        if known is not None:
            known.draining = True
        return known

    def remove(self, url: str) -> Instance | None:
        """Forget an instance; return it, or None if it was not known."""
        known = self.drain(url)
        if known is not None:
            self.instances = [each for each in self.instances if each is not known]
            self._index.clear(known.mark)
            self.version += 1
        return known

    def sync(self, source: str, wanted: Iterable[str | Named]) -> None:
        """Let the instances of a source be exactly these; those of other sources stay."""
        listed = [named(each) if isinstance(each, str) else each for each in wanted]
        urls = {each.url for each in listed}
        for each in self.instances:
            if each.source == source and each.url not in urls:
                self.remove(each.url)
        for one in listed:
            known = self.find(one.url)
            if known is None:
                self.add(one, source)
            elif known.source == source:
                known.role, known.bootstrap = one.role, one.bootstrap

    def learn(self, instance: Instance, facts: EngineFacts) -> None:
        """Note what an engine says of itself; a new process has an empty cache."""
        instance.asked = True
        if facts.started != instance.facts.started and instance.facts.started:
            self._index.clear(instance.mark)
            instance.transfer = ""
        if facts != instance.facts:
            instance.facts = facts
            self.version += 1
