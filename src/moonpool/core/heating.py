"""More copies of what is read much, and fewer again when it is not.

They go only where much is free, and are the first to go where room is needed.
"""

from __future__ import annotations

from itertools import islice

from moonpool.core.copies import HOT, is_spare
from moonpool.core.copying import BUSY, begin
from moonpool.core.heat import FADE_S
from moonpool.core.index import Object
from moonpool.core.retiring import LOOKED_AT_MAX, retire
from moonpool.core.state import State

COLD = 0.25
"""Below this share of the rate at which copies are made they are given up again."""


def measure(state: State) -> None:
    """Look now and then what is read much."""
    heat, config = state.copies.heat, state.config
    if state.now - heat.faded_at < FADE_S:
        return
    heat.faded_at = state.now
    hosts = {segment.host for segment in state.segments.open() if segment.copies}
    heat.on = len(hosts) > 1 and config.hot_reads_per_s > 0 and config.hot_copies_max > 0
    if heat.on:
        hot = islice(heat.above(config.hot_reads_per_s), LOOKED_AT_MAX)
        state.copies.hot = {each: copies_for(state, heat.rate(each)) for each in hot}
    else:
        state.copies.hot = {}
        heat.clear()
    _cool(state)
    heat.fade()


def copies_for(state: State, rate: float) -> int:
    """Return how many more copies an object is to have: one more for each doubling of its rate."""
    config = state.config
    times = int(rate / config.hot_reads_per_s)
    return min(times.bit_length(), config.hot_copies_max)


def go_on(state: State) -> None:
    """Begin to copy what is read much."""
    hot = state.copies.hot
    for each, more in list(hot.items()):
        if not each.alive or each in state.copies.busy:
            continue
        if _spares(each) < more:
            begun = begin(state, each, HOT, spare=True)
            if begun == BUSY:
                return
        if each in hot and _spares(each) + (each in state.copies.busy) >= more:
            del hot[each]


def _spares(each: Object) -> int:
    return sum(is_spare(each.generation_at(slot)) for slot in each.slots)


def _cool(state: State) -> None:
    """Give up copies of what is not read so much any more."""
    heat, cold = state.copies.heat, COLD * state.config.hot_reads_per_s
    for each in list(state.copies.spares):
        if heat.rate(each) <= cold:
            spare = next(s for s in each.slots if is_spare(each.generation_at(s)))
            retire(state, each, spare)
