"""``moonpool node``, and what is done with nodes that run."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from moonpool.cli.flags import command_of, log_to_stderr
from moonpool.cli.output import NOT_WELL, fail, print_json, reports_errors
from moonpool.cli.pool import Json, Master, connect
from moonpool.config import NodeConfig

if TYPE_CHECKING:
    from moonpool.client.store import Store
    from moonpool.core.messages import DrainStatus

HELP = "Run a node: give this host's memory to the pool. Or drain one that runs."
LOOK_S = 0.2
STUCK_LOOKS = 10
"""So many looks in a row at a drain in which nothing moves end the wait for it."""
AWAY_S = 60.0
SETTLE_S = 3.0
"""A node brings its segments and its disk to a new master one after the other: that those which are
there are empty counts after so long."""

Name = Annotated[str, typer.Argument(help="The node's name.", metavar="NODE")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(invoke_without_command=True, add_completion=False)
    group.callback(help=HELP)(_unless_another(command_of(NodeConfig, _run, help_text=HELP)))
    group.command("drain")(drain)
    group.command("undrain")(undrain)
    app.add_typer(group, name="node")


def _unless_another(run: Callable[..., None]) -> Callable[..., None]:
    """Return the command for when none of the others is given."""

    def callback(ctx: typer.Context, **flags: Any) -> None:
        if ctx.invoked_subcommand is None:
            run(**flags)

    own = inspect.Parameter("ctx", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
    parameters = [own, *inspect.signature(run).parameters.values()]
    callback.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    callback.__annotations__ = {each.name: each.annotation for each in parameters}
    return callback


def _run(config: NodeConfig) -> None:
    from moonpool.node.daemon import run

    log_to_stderr()
    run(config)


@reports_errors
def drain(
    node: Name,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait until it is empty. Exit code 1 if it cannot be.")
    ] = False,
    as_json: Json = False,
    master: Master = None,
) -> None:
    """Copy what a node has to others and put nothing new there, so that it can be stopped."""
    with connect(master) as store:
        store.drain_node(node)
        found = _wait(store, node) if wait else _status(store, node)
    _show(node, found, as_json=as_json)
    if wait and not found.empty:
        fail(f"{found.objects} objects remain on {node}: other nodes have no room", NOT_WELL)


@reports_errors
def undrain(node: Name, master: Master = None) -> None:
    """Let a node be used again."""
    with connect(master) as store:
        store.drain_node(node, on=False)


def _status(store: Store, node: str) -> DrainStatus:
    from moonpool.errors import NotFoundError

    found = _look(store, node)[1]
    if found is None:
        raise NotFoundError(f"the drain of {node} was ended")
    return found


def _look(store: Store, node: str) -> tuple[int, DrainStatus | None]:
    """Return the master's epoch, and how far the drain is if it knows of it."""
    status = store.status()
    return status.epoch, next((each for each in status.drains if each.node == node), None)


def _wait(store: Store, node: str) -> DrainStatus:
    """Wait until a node is empty, or only what has no room elsewhere is left."""
    epoch, found = _next(store, node, 0)
    looks, settled = 0, 0.0
    while not (found.empty and time.monotonic() >= settled) and looks < STUCK_LOOKS:
        time.sleep(LOOK_S)
        before, last = found, epoch
        epoch, found = _next(store, node, epoch)
        if epoch != last:
            settled = time.monotonic() + SETTLE_S
        still = found.stuck and found.objects == before.objects and not found.copying_bytes
        looks = looks + 1 if still and not found.empty else 0
    return found


def _next(store: Store, node: str, epoch: int) -> tuple[int, DrainStatus]:
    """Return what the master says next of a drain. One that is away is waited for, and so is the
    node where the master is another one than that of ``epoch``, if any: for AWAY_S together."""
    from moonpool.errors import MoonpoolError, NotFoundError

    deadline, told = time.monotonic() + AWAY_S, False
    while True:
        try:
            now, found = _look(store, node)
            if found is not None:
                return now, found
            why: MoonpoolError = NotFoundError(f"the drain of {node} was ended")
            if now == epoch:
                raise why
        except NotFoundError:
            raise
        except MoonpoolError as error:
            why = error
        if time.monotonic() >= deadline:
            raise why
        if not told:
            typer.echo("moonpool: the master, or the node, is away; the drain goes on", err=True)
            told = True
        time.sleep(LOOK_S)


def _show(node: str, found: DrainStatus, *, as_json: bool) -> None:
    from moonpool.cli.status import drain_text

    if as_json:
        print_json({name: getattr(found, name) for name in found.__struct_fields__})
    else:
        typer.echo(drain_text(found))
