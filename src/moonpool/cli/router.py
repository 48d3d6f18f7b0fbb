"""``moonpool router``."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

from moonpool.cli.flags import command_of, log_to_stderr
from moonpool.cli.output import reports_errors
from moonpool.config import RouterConfig
from moonpool.errors import ConfigError

HELP = "Run the OpenAI-compatible router of several engines."
BACKENDS_FLAG = "--instance"


def register(app: typer.Typer) -> None:
    """Add the command."""
    names = {"backends": BACKENDS_FLAG}
    command = command_of(RouterConfig, _run, help_text=HELP, names=names)
    app.command("router")(_with_bootstrap(command))


def _with_bootstrap(command: Callable[..., None]) -> Callable[..., None]:
    """Let ``--prefill URL`` be followed by a bootstrap port, as in other proxies' commands."""

    @reports_errors
    def wrapped(bootstrap: list[str] | None = None, **flags: Any) -> None:
        if bootstrap and not flags["prefill"]:
            raise ConfigError(f"{bootstrap[0]!r}: not expected here; allowed: flags, see --help")
        command(**flags)

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


def _run(config: RouterConfig) -> None:
    from moonpool.router.build import front_of, refuse_split
    from moonpool.router.service import listen, serve_until_signal

    refuse_split(config)
    _check(config.backends)
    front = front_of(config)
    sock = listen("port", config.host, config.port)
    log_to_stderr()
    serve_until_signal(front, sock)


def _check(urls: tuple[str, ...]) -> None:
    from moonpool.router.members import checked_url

    if not urls:
        raise ConfigError(
            f"backends: none given; allowed: {BACKENDS_FLAG} http://HOST:PORT, once or more"
        )
    for url in urls:
        checked_url(url, "backends")
