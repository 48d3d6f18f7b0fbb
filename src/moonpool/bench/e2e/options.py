"""How a trace is sent."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from moonpool.errors import ConfigError

CLOSED, OPEN = "closed", "open"
MODES = (CLOSED, OPEN)
BY_REQUEST, BY_SESSION = "request", "session"
BALANCES = (BY_REQUEST, BY_SESSION)


@dataclass(frozen=True, slots=True)
class Options:
    """How to send.

    endpoints: base URLs, in turn by ``balance``. mode: closed, a conversation's next request comes
    its pause after the answer before; open, at its time in the trace whatever has been answered.
    concurrency: conversations at a time (closed), requests in flight (open). think_scale and
    think_max_s: the pauses, made longer or shorter, and cut. speed: of an open loop's clock.
    limit_s: the run ends then, 0: when all is answered. plain: for servers that do not know vLLM's
    extensions.
    """

    endpoints: tuple[str, ...]
    model: str
    mode: str = CLOSED
    balance: str = BY_REQUEST
    concurrency: int = 16
    think_scale: float = 1.0
    think_max_s: float = 3600.0
    spacing_s: float = 0.0
    speed: float = 1.0
    request_timeout_s: float = 600.0
    limit_s: float = 0.0
    plain: bool = False

    def checked(self) -> Options:
        """Return itself; raise ConfigError for what cannot be."""
        for key, value, allowed in (
            ("mode", self.mode, MODES),
            ("balance", self.balance, BALANCES),
        ):
            if value not in allowed:
                raise ConfigError(f"{key}: {value!r} is not allowed; allowed: {', '.join(allowed)}")
        return self


def base_url(text: str, key: str = "endpoint") -> str:
    """Return a base URL without what follows the port; raise ConfigError."""
    text = text if "://" in text else f"http://{text}"
    try:
        parts = urlsplit(text)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good = False
    if not good:
        raise ConfigError(f"{key}: {text!r} is not allowed; allowed: http://HOST:PORT")
    return text.rstrip("/").removesuffix("/v1")
