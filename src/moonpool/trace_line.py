"""A line of Mooncake's traces, as moonpool writes it: from other traces, and from the router."""

from __future__ import annotations

import msgspec


class Line(msgspec.Struct, omit_defaults=True):
    """A request. ``timestamp`` and ``delay`` (since the answer before) in ms."""

    timestamp: int
    input_length: int
    output_length: int
    hash_ids: list[int] | None = None
    session_id: str = ""
    delay: float | None = None
