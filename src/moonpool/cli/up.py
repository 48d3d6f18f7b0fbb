"""``moonpool up``."""

from __future__ import annotations

import typer

from moonpool.cli.flags import command_of
from moonpool.demo.up_config import UpConfig

HELP = "Run the whole stack on this machine behind one OpenAI-compatible port, until Ctrl-C."


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("up")(command_of(UpConfig, _run, help_text=HELP, config_file=False))


def _run(config: UpConfig) -> None:
    import contextlib

    from rich.console import Console

    from moonpool.cli.interrupt import run_until_signal
    from moonpool.demo.up import run_up

    with contextlib.suppress(KeyboardInterrupt):
        run_until_signal(run_up(config, Console()))
    typer.echo("stopped")
