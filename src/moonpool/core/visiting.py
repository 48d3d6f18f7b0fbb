"""The verbs of sessions."""

from __future__ import annotations

from moonpool.core import codes
from moonpool.core.messages import (
    SESSION_CHARS_MAX,
    SESSION_KEYS_MAX,
    Done,
    EndSession,
    Failed,
    Matched,
    UseSession,
)
from moonpool.core.sessions import unused
from moonpool.core.state import State


def use_session(state: State, request: UseSession, _peer: str) -> Done | Failed:
    """Take note that a session uses prefixes; ends that are not in memory do not count."""
    wrong = _what_is_wrong(request.session)
    if wrong or len(request.keys) > SESSION_KEYS_MAX:
        return Failed(codes.INVALID, wrong or f"over {SESSION_KEYS_MAX} keys")
    known = [state.index.find(key) for key in request.keys]
    ends = [each for each in known if each is not None]
    if ends:
        state.counters["sessions_forgotten"] += state.sessions.use(request.session, ends)
    return Done()


def end_session(state: State, request: EndSession, _peer: str) -> Matched | Failed:
    """Forget a session; what nobody else uses goes first from now on. Return how many objects."""
    wrong = _what_is_wrong(request.session)
    if wrong:
        return Failed(codes.INVALID, wrong)
    ends = [state.index.find(key) for key in state.sessions.end(request.session)]
    released = state.eviction.released
    given_up = unused(
        [each for each in ends if each is not None], state.sessions.users, released.stamps
    )
    released.add(given_up)
    state.counters["sessions_ended"] += bool(ends)
    state.counters["session_objects_released"] += len(given_up)
    return Matched(len(given_up))


def _what_is_wrong(session: str) -> str:
    if not 0 < len(session) <= SESSION_CHARS_MAX:
        return f"a session's name of {len(session)} characters; 1 to {SESSION_CHARS_MAX} allowed"
    return ""
