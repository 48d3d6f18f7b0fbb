"""How commands reach the pool."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from moonpool.client.store import Store

Master = Annotated[
    str | None,
    typer.Option(
        "--master",
        help="The master's host:port, several with commas, or etcd://... (default: MOONPOOL_HA, "
        "MOONPOOL_MASTER, else 127.0.0.1:50051).",
        metavar="HOST:PORT",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def connect(master: str | None) -> Store:
    """Return the pool that flags, variables and defaults name; raise ConfigError or
    MasterUnreachableError."""
    from moonpool.client.store import Store
    from moonpool.config import ClientConfig, load

    config = load(ClientConfig, flags={"master": master})
    return Store.connect(
        config.ha or config.master,
        name=config.name or "cli",
        transports=config.transports,
        timeout_s=config.timeout_s,
        put_timeout_s=config.put_timeout_s,
        lease_s=config.lease_s,
        token=config.token,
        engines=config,
    )
