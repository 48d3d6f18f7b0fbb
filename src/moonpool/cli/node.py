"""``moonpool node``."""

from __future__ import annotations

import typer

from moonpool.cli.flags import command_of, log_to_stderr
from moonpool.config import NodeConfig

HELP = "Run a node: give this host's memory to the pool."


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("node")(command_of(NodeConfig, _run, help_text=HELP))


def _run(config: NodeConfig) -> None:
    from moonpool.node.daemon import run

    log_to_stderr()
    run(config)
