"""What the sections of a benchmark have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import numpy as np

from moonpool.bench.options import Options
from moonpool.bench.peers import PeerError
from moonpool.bench.systems import System, mooncake_system, moonpool_system
from moonpool.bench.tally import Tally
from moonpool.bench.worker import Answer
from moonpool.transport.layout import BYTES_PER_SLOT

Step = Callable[[], float]
Steps = list[tuple[str, Step]]


@contextmanager
def both(
    options: Options,
    tally: Tally,
    *,
    pool_bytes: int,
    clients: int = 1,
    object_size: int = BYTES_PER_SLOT,
) -> Iterator[list[System]]:
    """Run moonpool and, where it is asked for, Mooncake; in this order."""
    with ExitStack() as stack:
        ours = moonpool_system(pool_bytes, clients=clients, object_size=object_size)
        systems = [stack.enter_context(ours)]
        if options.mooncake:
            systems.append(mooncake(stack, options.mooncake, pool_bytes, clients=clients))
        for system in systems:
            stack.callback(tally.add, system)
        yield systems


def mooncake(
    stack: ExitStack, python: str, pool_bytes: int, *, clients: int = 1, tuned: bool = False
) -> System:
    """Start Mooncake; where that fails, what is returned says why at each step."""
    try:
        return stack.enter_context(
            mooncake_system(python, pool_bytes, clients=clients, tuned=tuned)
        )
    except PeerError as error:
        return System(
            "Mooncake",
            [],
            {},
            failure=str(error),
            beside="Mooncake, tuned" if tuned else "Mooncake",
        )


def median(answers: list[Answer]) -> float:
    """Return the median of the calls' seconds."""
    return float(np.median([seconds for answer in answers for seconds in answer["taken"]]))
