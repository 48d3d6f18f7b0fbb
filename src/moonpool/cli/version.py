"""``moonpool version``."""

from __future__ import annotations

from typing import Annotated

import typer

from moonpool.cli.output import print_json


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("version")(version)


def version(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Print moonpool's version, and those of Python and vLLM."""
    import importlib.metadata
    import platform

    import moonpool

    try:
        vllm = importlib.metadata.version("vllm")
    except importlib.metadata.PackageNotFoundError:
        vllm = ""
    found = {"moonpool": moonpool.__version__, "python": platform.python_version(), "vllm": vllm}
    if as_json:
        print_json(found)
    else:
        typer.echo("\n".join(f"{name} {value or 'not installed'}" for name, value in found.items()))
