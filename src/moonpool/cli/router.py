"""``moonpool router``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand

from moonpool.cli.flags import command_of, log_to_stderr
from moonpool.cli.output import reports_errors
from moonpool.config import RouterConfig, load
from moonpool.errors import ConfigError

HELP = "Run the OpenAI-compatible router of several engines."
BACKENDS_FLAG = "--instance"
PREFILL_FLAG = "--prefill"


class RouterCommand(TyperCommand):
    """Lets ``--prefill URL`` be followed by a bootstrap, as in other proxies' commands."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments with each bootstrap joined to its URL."""
        return super().parse_args(ctx, joined(args))


def joined(args: list[str]) -> list[str]:
    """Return the arguments with each ``--prefill URL BOOTSTRAP`` as a flag with one value."""
    found: list[str] = []
    open_flag = False
    for at, arg in enumerate(args):
        value = not arg.startswith("-")
        if value and open_flag:
            found[-1] += f" {arg}"
            open_flag = False
            continue
        found.append(arg)
        after_flag = at > 0 and args[at - 1] == PREFILL_FLAG
        open_flag = (value and after_flag) or arg.startswith(f"{PREFILL_FLAG}=")
    return found


def register(app: typer.Typer) -> None:
    """Add the command."""
    names = {"backends": BACKENDS_FLAG}
    flags = command_of(RouterConfig, lambda _: None, help_text=HELP, names=names)

    @reports_errors
    def command(**flags: Any) -> None:
        # Unlike other roles it can read its configuration again.
        file = flags.pop("config", None)
        given = {key: value for key, value in flags.items() if value not in (None, [])}
        run(lambda: load(RouterConfig, file=file, flags=given), file)

    command.__signature__ = flags.__signature__  # type: ignore[attr-defined]
    command.__annotations__ = flags.__annotations__
    command.__doc__ = HELP
    app.command("router", cls=RouterCommand)(command)


def run(read: Callable[[], RouterConfig], file: Path | None) -> None:
    """Serve until a signal comes. read: the configuration; file: where it may change."""
    from moonpool.router.build import front_of, members_of
    from moonpool.router.service import Reloader, listen, serve_until_signal

    config = read()
    if not members_of(config) and not config.discovery and not config.admin_api_key:
        raise ConfigError(
            f"backends: none given; allowed: {BACKENDS_FLAG} http://HOST:PORT, once or more"
        )
    log_to_stderr()
    front = front_of(config)
    sock = listen("port", config.host, config.port)
    serve_until_signal(front, sock, Reloader(front, config, read, file))
