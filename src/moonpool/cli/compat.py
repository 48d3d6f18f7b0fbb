"""``moonpool compat``: running programs written for Mooncake."""

from __future__ import annotations

from typing import Annotated

import typer

from moonpool.cli.output import print_json


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(help="Run programs written for Mooncake on moonpool.", no_args_is_help=True)
    group.command("env")(env)
    app.add_typer(group, name="compat")


def env(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Print the variables under which `import mooncake` and Mooncake's commands are moonpool's.

    eval "$(moonpool compat env)" sets them in a shell.
    """
    from moonpool.compat.env import as_shell, exports

    found = exports()
    if as_json:
        print_json(found)
    else:
        typer.echo(as_shell(found))
