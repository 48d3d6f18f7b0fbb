"""``moonpool router``."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from moonpool.cli.flags import command_of, log_to_stderr
from moonpool.cli.output import reports_errors
from moonpool.config import RouterConfig, load
from moonpool.errors import ConfigError

HELP = "Run the OpenAI-compatible router of several engines."
BACKENDS_FLAG = "--instance"


def register(app: typer.Typer) -> None:
    """Add the command."""
    names = {"backends": BACKENDS_FLAG}
    flags = command_of(RouterConfig, lambda _: None, help_text=HELP, names=names)
    app.command("router")(_command(flags))


def _command(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command with the other's flags: it can read its configuration again, and lets
    ``--prefill URL`` be followed by a bootstrap port, as in other proxies' commands."""

    @reports_errors
    def wrapped(bootstrap: list[str] | None = None, **flags: Any) -> None:
        if bootstrap and not flags["prefill"]:
            raise ConfigError(f"{bootstrap[0]!r}: not expected here; allowed: flags, see --help")
        file = flags.pop("config", None)
        given = {key: value for key, value in flags.items() if value not in (None, [])}
        _run(lambda: load(RouterConfig, file=file, flags=given), file)

    extra = inspect.Parameter(
        "bootstrap",
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[list[str] | None, typer.Argument(hidden=True)],
    )
    signature = inspect.signature(command)
    parameters = [extra, *signature.parameters.values()]
    wrapped.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    wrapped.__annotations__ = {each.name: each.annotation for each in parameters}
    wrapped.__doc__ = command.__doc__
    return wrapped


def _run(read: Callable[[], RouterConfig], file: Path | None) -> None:
    from moonpool.router.build import front_of, refuse_split
    from moonpool.router.service import Reloader, listen, serve_until_signal

    config = read()
    refuse_split(config)
    _check(config)
    log_to_stderr()
    front = front_of(config)
    sock = listen("port", config.host, config.port)
    serve_until_signal(front, sock, Reloader(front, config, read, file))


def _check(config: RouterConfig) -> None:
    from moonpool.router.members import checked_url

    if not config.backends and not config.discovery and not config.admin_api_key:
        raise ConfigError(
            f"backends: none given; allowed: {BACKENDS_FLAG} http://HOST:PORT, once or more"
        )
    for url in config.backends:
        checked_url(url, "backends")
