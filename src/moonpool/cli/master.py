"""``moonpool master``."""

from __future__ import annotations

import typer

from moonpool.cli.flags import command_of, log_to_stderr
from moonpool.config import MasterConfig

HELP = "Run the master: the one authority on what is in the pool."


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("master")(command_of(MasterConfig, _run, help_text=HELP))


def _run(config: MasterConfig) -> None:
    from moonpool.master.daemon import run

    log_to_stderr()
    run(config)
