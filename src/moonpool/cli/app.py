"""All commands, in the order of the help page."""

from __future__ import annotations

import typer

from moonpool.cli import (
    bench,
    compat,
    demo,
    doctor,
    keeping,
    master,
    node,
    objects,
    plan,
    router,
    sim,
    status,
    trace,
    up,
    version,
)

app = typer.Typer(
    help="A shared KV-cache pool for LLM serving.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

up.register(app)
demo.register(app)
master.register(app)
node.register(app)
router.register(app)
objects.register(app)
keeping.register(app)
status.register(app)
doctor.register(app)
bench.register(app)
compat.register(app)
trace.register(app)
plan.register(app)
sim.register(app)
version.register(app)
