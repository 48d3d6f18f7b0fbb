"""Which hosts a client's parameters may name."""

from __future__ import annotations

import ipaddress
from typing import Any

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class Hosts:
    """Names, addresses and networks such as ``10.0.0.0/8``; none: any host."""

    def __init__(self, allowed: tuple[str, ...] = ()) -> None:
        """Raises ValueError for a network that is none."""
        self._names = frozenset(each.lower() for each in allowed if "/" not in each)
        self._networks: list[Network] = [
            ipaddress.ip_network(each) for each in allowed if "/" in each
        ]

    def allow(self, host: str) -> bool:
        """Return whether a host may be asked. Names are compared as they are written."""
        if not self._names and not self._networks:
            return True
        if host.lower() in self._names:
            return True
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            return False
        return any(address in network for network in self._networks)


def parse(value: Any) -> tuple[str, ...]:
    """Return hosts from a list or from text with commas; ValueError for anything else."""
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, list | tuple) or not all(isinstance(part, str) for part in parts):
        raise ValueError("not hosts")
    hosts = tuple(part.strip() for part in parts if part.strip())
    Hosts(hosts)
    return hosts
