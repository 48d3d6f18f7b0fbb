"""``moonpool pin | unpin | end-session``: what is to stay in memory, and what may go first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from moonpool.cli.output import NOT_WELL, printable, reports_errors
from moonpool.cli.pool import Master, connect
from moonpool.errors import NotFoundError, NotReadyError, PinQuotaError

if TYPE_CHECKING:
    from collections.abc import Sequence

FAILURES = {
    NotFoundError.code: "not in memory",
    NotReadyError.code: "its put has not ended yet",
    PinQuotaError.code: "as much is pinned for good as may be (the master's hard_pin_share)",
}
Keys = Annotated[list[str], typer.Argument(help="Objects, as moonpool ls shows them.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("pin")(pin)
    app.command("unpin")(unpin)
    app.command("end-session")(end_session)


@reports_errors
def pin(
    keys: Keys,
    soft: Annotated[
        float | None,
        typer.Option(
            "--soft",
            help="Only for so many seconds, and not where nothing else is left to evict; below 0: "
            "as long as the master says.",
            metavar="SECONDS",
        ),
    ] = None,
    master: Master = None,
) -> None:
    """Keep objects from eviction."""
    from moonpool.core.keys import parse

    with connect(master) as store:
        codes = store.pin([parse(key) for key in keys], soft)
    _report(keys, codes)


@reports_errors
def unpin(keys: Keys, master: Master = None) -> None:
    """End pins of either kind."""
    from moonpool.core.keys import parse

    with connect(master) as store:
        codes = store.unpin([parse(key) for key in keys])
    _report(keys, codes)


@reports_errors
def end_session(
    session: Annotated[str, typer.Argument(help="Its name.")], master: Master = None
) -> None:
    """Let what only this session used be evicted before all else; print how many objects."""
    with connect(master) as store:
        typer.echo(store.end_session(session))


def _report(keys: Sequence[str], codes: Sequence[int]) -> None:
    from moonpool.errors import error_for

    failed = [(key, code) for key, code in zip(keys, codes, strict=True) if code]
    for key, code in failed:
        why = FAILURES.get(code) or type(error_for(code, "")).__name__
        typer.echo(f"moonpool: {printable(key)}: {why} ({code})", err=True)
    if failed:
        raise typer.Exit(NOT_WELL)
