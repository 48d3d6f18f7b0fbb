"""``moonpool bench restart``."""

from __future__ import annotations

from typing import Annotated

import typer

from moonpool.cli.output import print_json, print_table, reports_errors


@reports_errors
def restart(
    role: Annotated[str, typer.Argument(help="What is killed: master or node.")] = "master",
    objects: Annotated[int, typer.Option(min=64, help="Objects in the pool.")] = 1_000_000,
    size: Annotated[str, typer.Option(help="Their size.")] = "4KB",
    segments: Annotated[int, typer.Option(min=1, max=64, help="The node's segments.")] = 8,
    rounds: Annotated[int, typer.Option(min=1, max=100, help="How often.")] = 3,
    as_json: Annotated[bool, typer.Option("--json", help="The figures as JSON.")] = False,
) -> None:
    """Kill a master or a node under lookups and start it again; show how long it takes until 95 %
    of them hit again. The pool is in /dev/shm and needs a tenth more than the objects."""
    from dataclasses import asdict

    from moonpool.bench.restart import run
    from moonpool.config_values import parse_size
    from moonpool.errors import ConfigError

    try:
        nbytes = parse_size(size)
    except ValueError:
        raise ConfigError(f"size: {size!r} is not allowed; allowed: such as 4KB") from None
    found = run(role, objects, nbytes, segments, rounds, lambda text: typer.echo(text, err=True))
    if as_json:
        print_json([asdict(each) for each in found])
        return
    rows = [
        [
            f"{each.serves_s:.2f}",
            f"{each.back_s:.2f}",
            f"{each.master_cpu_s:.2f}",
            f"{each.node_cpu_s:.2f}",
        ]
        for each in found
    ]
    print_table(["serves, s", "95 % hit, s", "CPU of master, s", "CPU of node, s"], rows)
