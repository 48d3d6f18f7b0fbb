"""``moonpool router``."""

from __future__ import annotations

import typer

from moonpool.cli.flags import command_of, log_to_stderr
from moonpool.config import RouterConfig
from moonpool.errors import ConfigError

HELP = "Run the OpenAI-compatible front of several engines."
BACKENDS_FLAG = "--instance"


def register(app: typer.Typer) -> None:
    """Add the command."""
    names = {"backends": BACKENDS_FLAG}
    app.command("router")(command_of(RouterConfig, _run, help_text=HELP, names=names))


def _run(config: RouterConfig) -> None:
    import asyncio

    from moonpool.router.front import Front
    from moonpool.router.service import listen, serve_until_signal

    _check(config.backends)
    front = Front(config.backends, idle_timeout_s=config.timeout_s)
    sock = listen("port", config.host, config.port)
    log_to_stderr()
    asyncio.run(serve_until_signal(front, sock))


def _check(urls: tuple[str, ...]) -> None:
    from urllib.parse import urlsplit

    if not urls:
        raise ConfigError(
            f"backends: none given; allowed: {BACKENDS_FLAG} http://HOST:PORT, once or more"
        )
    for url in urls:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query:
            raise ConfigError(f"backends: {url!r} is no base URL; allowed: http://HOST:PORT")
