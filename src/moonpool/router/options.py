"""What the front can be told; apart from the command's configuration, which is made of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from moonpool.router.admission import Limits


@dataclass(frozen=True, slots=True)
class Options:
    """idle_timeout_s: the longest silence of an instance, before and within an answer.
    body_timeout_s: how long a client may take to send its request. write_timeout_s: how long it
    may leave an answer unread. admin_key: "" forbids the verbs that change instances.
    health_s: between two health checks, 0 for none. pd: how KV is handed over, see pd_params.WAYS.
    bypass_tokens: what a decoding engine may prefill for itself. prefill_timeout_s: how long a
    prefill on another engine may take.
    """

    idle_timeout_s: float = 600.0
    body_timeout_s: float = 60.0
    write_timeout_s: float = 120.0
    body_bytes: int = 64 << 20
    admin_key: str = ""
    session_header: str = "X-Session-ID"
    health_s: float = 0.0
    pool_wait_s: float = 0.02
    pd: str = "auto"
    bypass_tokens: int = 2048
    prefill_timeout_s: float = 120.0
    limits: Limits = field(default_factory=Limits)
