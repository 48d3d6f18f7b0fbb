"""The command line: ``moonpool``. Commands are thin; what they do is imported when they run."""

from __future__ import annotations


def main() -> None:
    """Run the command that the arguments name and leave with its exit code."""
    from moonpool.cli.app import app

    app(prog_name="moonpool")
