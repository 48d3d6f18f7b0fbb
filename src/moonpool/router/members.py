"""The instances that the router knows, and how they come and go."""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import urlsplit

from moonpool.errors import ConfigError
from moonpool.router.index import PrefixIndex
from moonpool.router.instance import EngineFacts, Instance
from moonpool.router.latency import LatencyModel

INSTANCES_MAX = 512


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


class Members:
    """Instances in the order in which they joined. A request that runs on one that has left goes
    on to its end; nothing new is sent there.

    fleet: what was learned of all of them; a new one begins with it.
    """

    def __init__(self, index: PrefixIndex) -> None:
        self.instances: list[Instance] = []
        self.fleet = LatencyModel()
        self.version = 0
        self._index = index

    def find(self, url: str) -> Instance | None:
        """Return the instance of a URL, if it is known."""
        url = url.rstrip("/")
        return next((each for each in self.instances if each.url == url), None)

    def add(self, url: str, source: str = "config") -> Instance:
        """Return the instance of that URL, new or known; a draining one is in use again.

        Raises ConfigError for what is no URL, and for more than INSTANCES_MAX instances.
        """
        url = checked_url(url)
        known = self.find(url)
        if known is not None:
            known.draining = False
            return known
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

    def sync(self, source: str, urls: Iterable[str]) -> None:
        """Let the instances of a source be exactly these; those of other sources stay."""
        wanted = [checked_url(url) for url in urls]
        for each in self.instances:
            if each.source == source and each.url not in wanted:
                self.remove(each.url)
        for url in wanted:
            if self.find(url) is None:
                self.add(url, source)

    def learn(self, instance: Instance, facts: EngineFacts) -> None:
        """Note what an engine says of itself; a new process has an empty cache."""
        instance.asked = True
        if facts.started != instance.facts.started and instance.facts.started:
            self._index.clear(instance.mark)
        if facts != instance.facts:
            instance.facts = facts
            self.version += 1
