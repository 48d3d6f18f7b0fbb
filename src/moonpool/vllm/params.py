"""What a client's ``kv_transfer_params`` ask for. Anything may stand there: nothing raises."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from moonpool.core.messages import TRANSFER_CHARS_MAX


@dataclass(frozen=True, slots=True)
class Wish:
    """``sends``: another engine waits for this request's blocks; ``receives``: another engine
    computes them. ``transfer`` names the pair; empty if neither."""

    transfer: str = ""
    sends: bool = False
    receives: bool = False


NONE = Wish()


def read(params: Any) -> tuple[Wish, bool]:
    """Return what is asked for, and whether something was left out because it makes no sense.

    Known are ``do_remote_decode`` and ``do_remote_prefill`` (one of them true) and
    ``transfer_id`` (1 to 128 printable characters); other keys are other connectors'.
    """
    if params is None:
        return NONE, False
    if not isinstance(params, dict):
        return NONE, True
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
