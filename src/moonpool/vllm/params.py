"""What a client's ``kv_transfer_params`` ask for. Anything may stand there: nothing raises."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from moonpool.core.messages import TRANSFER_CHARS_MAX


@dataclass(frozen=True, slots=True)
class Wish:
    """``sends``: another engine waits for this request's blocks; ``receives``: another engine
    computes them. ``transfer`` names the pair; empty if neither. ``session`` names the conversation
    that the request belongs to, if its client says so; ``last``: it ends with this request."""

    transfer: str = ""
    sends: bool = False
    receives: bool = False
    session: str = ""
    last: bool = False


NONE = Wish()


def read(params: Any) -> tuple[Wish, bool]:
    """Return what is asked for, and whether something was left out because it makes no sense.

    Known are ``do_remote_decode`` and ``do_remote_prefill`` (one of them true) and
    ``transfer_id`` (1 to 128 printable characters), and ``moonpool`` with ``session`` (the same)
    and ``end_session`` (true or false); other keys are other connectors'.
    """
    if params is None:
        return NONE, False
    if not isinstance(params, dict):
        return NONE, True
    session, last, odd = _session(params.get("moonpool"))
    wish, also_odd = _handoff(params)
    if session:
        wish = replace(wish, session=session, last=last)
    return wish, odd or also_odd


def _session(said: Any) -> tuple[str, bool, bool]:
    """Return a session's name, whether it ends, and whether something makes no sense."""
    if said is None:
        return "", False, False
    if not isinstance(said, dict):
        return "", False, True
    session, last = said.get("session"), said.get("end_session")
    odd = last is not None and not isinstance(last, bool)
    if session is None:
        return "", False, odd or last is True
    if not _is_name(session):
        return "", False, True
    return str(session), last is True, odd


def _handoff(params: dict[Any, Any]) -> tuple[Wish, bool]:
    sends, receives = params.get("do_remote_decode"), params.get("do_remote_prefill")
    odd = not all(each is None or isinstance(each, bool) for each in (sends, receives))
    if sends is not True and receives is not True:
        return NONE, odd
    transfer = params.get("transfer_id")
    if (sends is True and receives is True) or not _is_name(transfer):
        return NONE, True
    return Wish(str(transfer), sends is True, receives is True), odd


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= TRANSFER_CHARS_MAX and value.isprintable()
