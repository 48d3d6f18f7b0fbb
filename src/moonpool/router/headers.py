"""Which headers go on to the other side."""

from __future__ import annotations

from collections.abc import Mapping

from multidict import CIMultiDict

ROUTER_HEADER = "X-Moonpool-Router"
"""Names the routers that a request has passed."""

# What belongs to one connection, or what this side sets itself (RFC 9110, section 7.6.1).
HOP_HEADERS = frozenset(
    (
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "http2-settings",
        "host",
        "content-length",
        "accept-encoding",
        "expect",
    )
)


def end_to_end(headers: Mapping[str, str]) -> CIMultiDict[str]:
    """Return the headers without those of this connection, and those that it names itself."""
    connection = headers.get("Connection", "")
    named = (
        {part.strip().lower() for part in connection.split(",")}
        if "," in connection
        else {connection.strip().lower()}
    )
    kept = CIMultiDict[str]()
    for name, value in headers.items():
        lower = name.lower()
        if lower not in HOP_HEADERS and lower not in named:
            kept.add(name, value)
    return kept


def to_instance(headers: Mapping[str, str], router: str) -> CIMultiDict[str]:
    """Return a request's headers as an instance is sent them by this router: its body is plain,
    however it came."""
    kept = end_to_end(headers)
    kept.popall("Content-Encoding", None)
    kept.add(ROUTER_HEADER, router)
    return kept
