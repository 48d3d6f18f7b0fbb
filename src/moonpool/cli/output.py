"""What commands print, and how their failures leave: one line, and an exit code.

0: done. 1: the thing asked about is not well. 2: wrong usage.
"""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable
from typing import Any, NoReturn, ParamSpec, TypeVar

import typer

from moonpool.errors import ConfigError, InvalidArgumentError, MoonpoolError

NOT_WELL = 1
WRONG_USAGE = 2
INTERRUPTED = 130
PIPE_COLUMNS = 10_000
UNITS = ("B", "KiB", "MiB", "GiB", "TiB")

P = ParamSpec("P")
R = TypeVar("R")


def reports_errors(command: Callable[P, R]) -> Callable[P, R]:
    """Turn moonpool's errors and Ctrl-C into one line on stderr and an exit code."""

    @functools.wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except (ConfigError, InvalidArgumentError) as error:
            fail(str(error), WRONG_USAGE)
        except MoonpoolError as error:
            fail(str(error), NOT_WELL)
        except KeyboardInterrupt:
            fail("interrupted", INTERRUPTED)
        except BrokenPipeError:
            # Whoever read this output has seen enough; Python would complain once more at exit.
            sys.stderr.close()
            raise typer.Exit(NOT_WELL) from None

    return wrapped


def fail(message: str, code: int) -> NoReturn:
    """Print the message on stderr and leave with the code."""
    typer.echo(f"moonpool: {printable(message)}", err=True)
    raise typer.Exit(code)


def print_json(value: Any) -> None:
    """Print a value as indented JSON."""
    typer.echo(json.dumps(value, indent=2))


def print_table(headings: list[str], rows: list[list[str]], *, title: str = "") -> None:
    """Print a table; figures (columns whose heading ends in a number's unit) stand right."""
    from rich.console import Console
    from rich.table import Table

    table = Table(*headings, title=title or None, title_justify="left")
    for row in rows:
        table.add_row(*map(printable, row))
    # Whoever reads a pipe wants whole keys; a terminal wants lines that fit.
    width = None if sys.stdout.isatty() else PIPE_COLUMNS
    Console(width=width).print(table, markup=False)


def printable(text: str) -> str:
    """Return the text with what would steer a terminal written out: keys are anybody's bytes."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def size_text(nbytes: int) -> str:
    """Return a size for people, such as ``1.5 GiB``."""
    value, unit = float(nbytes), 0
    while value >= 1024 and unit < len(UNITS) - 1:
        value /= 1024
        unit += 1
    return f"{value:.1f} {UNITS[unit]}" if unit else f"{nbytes} B"
