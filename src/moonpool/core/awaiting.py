"""The verbs of handoffs: news of them, and waiting for their objects."""

from __future__ import annotations

import math

from moonpool.core import codes
from moonpool.core.checks import U64_MAX, is_packed
from moonpool.core.messages import (
    AWAIT_KEYS_MAX,
    BATCH_ITEMS_MAX,
    ENDED,
    FAILED,
    OPEN,
    TRANSFER_CHARS_MAX,
    Await,
    Awaited,
    Done,
    Failed,
    News,
    Parked,
    Tell,
    WaitersGone,
)
from moonpool.core.state import State


def tell(state: State, request: Tell, peer: str) -> Done | Failed:
    """Take in news of handoffs; what is wrong or has no room is counted and left out."""
    if len(request.news) > BATCH_ITEMS_MAX:
        return Failed(codes.INVALID, f"{len(request.news)} news; {BATCH_ITEMS_MAX} are allowed")
    for news in request.news:
        if not _is_sound(news) or not peer or not state.handoffs.tell(news, peer, state.now):
            state.counters["handoff_news_refused"] += 1
    return Done()


def wait(state: State, request: Await, peer: str) -> Awaited | Parked | Failed:
    """Answer how many leading keys are there, or park the question until there is one."""
    keys, transfer, wait_s = request.keys, request.transfer, request.wait_s
    if not 1 <= len(keys) <= AWAIT_KEYS_MAX or not all(map(is_packed, keys)):
        return Failed(codes.INVALID, f"{len(keys)} keys to wait for; 1 to {AWAIT_KEYS_MAX}")
    if not math.isfinite(wait_s) or len(transfer) > TRANSFER_CHARS_MAX:
        return Failed(codes.INVALID, f"a wait of {wait_s} s for {transfer[:32]!r}")
    state.counters["awaits"] += 1
    now = _answer(state, keys, transfer)
    if now.count or now.state in (ENDED, FAILED) or wait_s <= 0:
        return now
    if not state.handoffs.has_room(peer, keys):
        return Failed(codes.NO_SPACE, "too many wait already")
    state.counters["awaits_parked"] += 1
    until = state.now + min(wait_s, state.config.await_s_max)
    return Parked(state.handoffs.wait(list(keys), transfer, peer, until))


def gone(state: State, request: WaitersGone, _peer: str) -> None:
    """Forget waiters whose connection has ended."""
    for number in request.numbers:
        state.counters["awaits_ended"] += state.handoffs.give_up(number)


def answers(state: State) -> tuple[tuple[int, Awaited], ...]:
    """Return what to answer to parked questions now."""
    ready = state.handoffs.take_ready()
    if not ready:
        return ()
    state.counters["awaits_ended"] += len(ready)
    return tuple((each.number, _answer(state, each.keys, each.transfer)) for each in ready)


def _answer(state: State, keys: list[bytes], transfer: str) -> Awaited:
    count, find, on_disk = 0, state.index.find, state.disks.objects
    while count < len(keys) and (find(keys[count]) is not None or keys[count] in on_disk):
        count += 1
    return Awaited(count, *state.handoffs.look(transfer, state.now))


def _is_sound(news: News) -> bool:
    return (
        0 < len(news.transfer) <= TRANSFER_CHARS_MAX
        and news.state in (OPEN, ENDED, FAILED)
        and 0 <= news.number <= U64_MAX
    )
