"""The command line: ``moonpool``. Commands are thin; what they do is imported when they run."""

from __future__ import annotations

import sys
from typing import Any


def main() -> None:
    """Run the command that the arguments name and leave with its exit code.

    Wrong usage is one line on stderr and exit code 2, like every other mistake.
    """
    import typer

    from moonpool.cli.app import app
    from moonpool.cli.output import INTERRUPTED, WRONG_USAGE, printable

    # Typer brings its own copy of click or uses the package: this is the class it raises.
    usage_error: Any = typer.BadParameter.__mro__[1]
    try:
        code = app(prog_name="moonpool", standalone_mode=False)
    except usage_error as error:
        code = WRONG_USAGE
        text = " ".join(error.format_message().split())
        if type(error).__name__ == "NoArgsIsHelpError" or not text:
            error.show()
        else:
            where = f" (see {error.ctx.command_path} --help)" if error.ctx else ""
            sys.stderr.write(f"moonpool: {printable(text)}{where}\n")
    except typer.Abort:
        code = INTERRUPTED
    sys.exit(code if isinstance(code, int) else 0)
