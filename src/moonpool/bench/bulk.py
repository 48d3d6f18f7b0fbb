"""Put and get of large batches, in shared memory or forced over TCP, beside the machine's limits
and Mooncake: each round takes all of them in turn."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import numpy as np

from moonpool.bench.batch import Batch, Bytes, random_bytes
from moonpool.bench.limits import memcpy_seconds, socket_limit
from moonpool.bench.options import Options
from moonpool.bench.peers import PeerError
from moonpool.bench.proc import Usage
from moonpool.bench.report import Limit, Row, rate_row
from moonpool.bench.sections import Step, Steps, mooncake
from moonpool.bench.series import Series, alternate
from moonpool.bench.systems import TUNED_FROM_PIECES, System, moonpool_system
from moonpool.bench.tally import Tally

SPARE_BYTES = 256 << 20
VERBS = ("put", "get")
BARS = {"shm": (0.85, 5.0), "tcp": (0.9, 2.0)}
TITLES = {"shm": "shared memory", "tcp": "TCP"}
UNPACED = "reno"
"""Where the system's TCP paces, as BBR does, this is faster on loopback: shown, not held to."""


def bulk_rows(section: str, options: Options, tally: Tally) -> Iterator[Row]:
    """Yield the rows of all batches and numbers of clients of ``shm`` or ``tcp``."""
    for batch in options.batches:
        for clients in options.clients:
            yield from one_batch(section, batch, clients, options, tally)


def pool_for(batch: Batch, clients: int) -> int:
    """Return a size of the pool in which the batches of all clients have room."""
    return batch.nbytes * clients * 5 // 4 + SPARE_BYTES


def one_batch(
    section: str, batch: Batch, clients: int, options: Options, tally: Tally
) -> Iterator[Row]:
    """Yield the rows of one batch: the limits, put, get, CPU seconds per GB."""
    nbytes = batch.nbytes * clients
    source = random_bytes(batch.nbytes, seed=11)
    with ExitStack() as stack:
        steps, limit = limit_steps(section, stack, source, clients, options)
        plain = [name for name, _ in steps]
        ours = _moonpool(section, stack, batch, clients)
        theirs = _mooncake(stack, batch, clients, options)
        meters = {system.name: system.usage() for system in (ours, theirs) if system}
        for system in filter(None, (ours, theirs)):
            stack.callback(tally.add, system)
            steps += [(f"{system.name} {v}", _step(system, v, meters)) for v in VERBS]
        taken = alternate(steps, options.runs)
    title = f"{TITLES[section]}, {batch}" + (f", {clients} clients" if clients > 1 else "")
    for name in plain:
        yield rate_row(section, f"{title}: {name}", taken[name], nbytes, None)
    yield from _held(section, title, nbytes, taken, limit, theirs, options)
    for system in filter(None, (ours, theirs)):
        if not system.failure:
            moved = nbytes * (options.runs + 1) * len(VERBS)
            yield cpu_row(section, f"{title}: {system.name}", meters[system.name], moved)


def limit_steps(
    section: str, stack: ExitStack, source: Bytes, clients: int, options: Options
) -> tuple[Steps, str]:
    """Return the steps of the machine's own limits, and the name of the one that counts."""
    if section == "tcp":
        name = f"blocking sockets, {options.streams} streams"
        sockets = stack.enter_context(socket_limit(len(source), options.streams))
        unpaced = stack.enter_context(socket_limit(len(source), options.streams, UNPACED))
        return [
            (name, lambda: clients * sockets.seconds(source)),
            (f"{name}, {UNPACED}", lambda: clients * unpaced.seconds(source)),
        ], name
    target = np.zeros_like(source)
    threads = clients
    name = f"memcpy, {threads} thread" + ("s" if threads > 1 else "")
    steps: Steps = [(name, lambda: clients * memcpy_seconds(target, source, threads))]
    if threads == 1:
        steps.append(("memcpy, 2 threads", lambda: memcpy_seconds(target, source, 2)))
    return steps, name


def _moonpool(section: str, stack: ExitStack, batch: Batch, clients: int) -> System:
    transports = ("tcp",) if section == "tcp" else ("shm", "tcp")
    pool = pool_for(batch, clients)
    system = stack.enter_context(moonpool_system(pool, transports=transports, clients=clients))
    system.hold(batch)
    return system


def _mooncake(stack: ExitStack, batch: Batch, clients: int, options: Options) -> System | None:
    if not options.mooncake:
        return None
    tuned = batch.objects * batch.pieces > TUNED_FROM_PIECES
    pool = pool_for(batch, clients)
    system = mooncake(stack, options.mooncake, pool, clients=clients, tuned=tuned)
    try:
        system.hold(batch)
    except PeerError as error:
        system.failure = str(error)
    return system


def _step(system: System, verb: str, meters: dict[str, Usage]) -> Step:
    return lambda: system.step(verb, meters[system.name])


def _held(
    section: str,
    title: str,
    nbytes: int,
    taken: dict[str, Series],
    limit: str,
    theirs: System | None,
    options: Options,
) -> Iterator[Row]:
    """Yield put and get beside the machine's limit and beside Mooncake."""
    of_limit, of_mooncake = BARS[section]
    for verb in VERBS:
        what, series = f"{title}: {verb}", taken[f"moonpool {verb}"]
        yield rate_row(
            section, what, series, nbytes, Limit(limit, taken[limit], options.bar(of_limit))
        )
        other = f"{limit}, {UNPACED}"
        if other in taken:
            yield rate_row(section, what, series, nbytes, Limit(other, taken[other], None))
        if theirs:
            held = Limit(theirs.beside, taken[f"Mooncake {verb}"], options.bar(of_mooncake))
            yield rate_row(section, what, series, nbytes, held)


def cpu_row(section: str, what: str, usage: Usage, nbytes: int) -> Row:
    """Return the row of the processor time per 10^9 bytes, of all roles and of each."""
    parts = {role: seconds / nbytes * 1e9 for role, seconds in usage.seconds.items()}
    note = ", ".join(f"{role} {part:.3f}" for role, part in parts.items())
    return Row(section, f"{what}, CPU", sum(parts.values()), "s/GB", note=note)
