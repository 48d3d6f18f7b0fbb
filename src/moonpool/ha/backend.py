"""The seam to the stores in which an election is held."""

from __future__ import annotations

import json
from typing import Any, Protocol

from moonpool.errors import MoonpoolError
from moonpool.ha.election import Answer, Record, Seen

TEXT_CHARS_MAX = 512
EPOCH_MAX = (1 << 31) - 1
LEASE_S_MAX = 86_400.0


class BackendError(MoonpoolError):
    """The store of the election did not do what it was asked; whether it will is not known."""

    code = -1000


class Backend(Protocol):
    """A store of one record that can compare and swap. Calls raise BackendError; the caller bounds
    how long they take by cancelling them."""

    async def read(self) -> Seen:
        """Return the record as the store has it now, not as it was once."""
        ...

    async def write(self, record: Record, version: str) -> Answer:
        """Replace the record if it has this version; otherwise return the one there is."""
        ...

    async def close(self) -> None:
        """Give up all connections."""
        ...


def pack(record: Record) -> str:
    """Return the record as text."""
    return json.dumps(
        {
            "holder": record.holder,
            "address": record.address,
            "epoch": record.epoch,
            "lease_s": record.lease_s,
            "beat": record.beat,
        }
    )


def unpack(text: str | bytes) -> Record:
    """Return the record in a text; raise BackendError for anything else."""
    try:
        raw = json.loads(text)
    except (ValueError, RecursionError):
        raise BackendError("the election's record is no JSON") from None
    if not isinstance(raw, dict):
        raise BackendError("the election's record is no table")
    return checked(raw)


def checked(raw: dict[str, Any]) -> Record:
    """Return the record with these fields; raise BackendError unless each can be one's."""
    holder, address, epoch = raw.get("holder"), raw.get("address"), raw.get("epoch")
    lease_s, beat = raw.get("lease_s"), raw.get("beat", 0)
    texts = isinstance(holder, str) and isinstance(address, str)
    if not texts or max(len(str(holder)), len(str(address))) > TEXT_CHARS_MAX:
        raise BackendError("the election's record names no holder and address")
    if not isinstance(epoch, int) or not 0 <= epoch <= EPOCH_MAX:
        raise BackendError(f"the election's record has the epoch {epoch!r}")
    if not isinstance(lease_s, int | float) or not 0 < lease_s <= LEASE_S_MAX:
        raise BackendError(f"the election's record has a lease of {lease_s!r} seconds")
    if not isinstance(beat, int):
        raise BackendError(f"the election's record has the beat {beat!r}")
    return Record(str(holder), str(address), epoch, float(lease_s), beat)
