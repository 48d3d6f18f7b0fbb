"""vLLM's KV events: what a batch says, and which batches are missing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

import msgspec

from moonpool.router.blockhash import KEY_MASK, key_of

BLOCKS_MAX = 1 << 20
# Blocks in the engine's own memory; the other media are tiers below it.
GPU = "GPU"
# BlockStored's fields where events are arrays, as up to vLLM 0.23.
_STORED = ("block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium")
_decode = msgspec.msgpack.Decoder()


@dataclass(frozen=True, slots=True)
class Stored:
    """Blocks that an engine has now. parent: key of the block before them, None at the start.

    tokens: ids of all these blocks, empty where the engine does not say. plain: whether nothing
    but tokens is in the first block's hash.
    """

    keys: tuple[int, ...]
    parent: int | None
    tokens: tuple[int, ...]
    block_tokens: int
    plain: bool


@dataclass(frozen=True, slots=True)
class Removed:
    """Blocks that an engine has no more."""

    keys: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Cleared:
    """An engine has lost all its blocks."""


Event = Stored | Removed | Cleared


def read_batch(payload: bytes) -> list[Event]:
    """Return the events about the engine's own memory; raise ValueError for what is no batch.

    Events of other media, of other cache groups than the first, and of unknown kinds are left out.
    """
    try:
        batch = _decode.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"no batch of KV events: {error}") from None
    if not isinstance(batch, list) or len(batch) < 2 or not isinstance(batch[1], list):
        raise ValueError("no batch of KV events")
    return [*_events(batch[1])]


def _events(raw: list[Any]) -> Iterator[Event]:
    for each in raw:
        kind, fields = _named(each)
        if kind == "AllBlocksCleared":
            yield Cleared()
        elif fields.get("medium") in (None, GPU) and fields.get("group_idx") in (None, 0):
            keys = _keys(fields.get("block_hashes"))
            if keys and kind == "BlockRemoved":
                yield Removed(keys)
            elif keys and kind == "BlockStored":
                yield _stored(keys, fields)


def _named(event: Any) -> tuple[str, dict[str, Any]]:
    if isinstance(event, dict):
        return str(event.get("type")), event
    if isinstance(event, list) and event:
        names = ("block_hashes", "medium") if event[0] == "BlockRemoved" else _STORED
        return str(event[0]), dict(zip(names, event[1:], strict=False))
    return "", {}


def _stored(keys: tuple[int, ...], fields: dict[str, Any]) -> Stored:
    tokens, size = fields.get("token_ids"), fields.get("block_size")
    sound = (
        isinstance(tokens, list)
        and isinstance(size, int)
        and len(tokens) == size * len(keys)
        and all(type(token) is int for token in tokens)
    )
    parent = _key(fields.get("parent_block_hash"))
    extra = fields.get("extra_keys")
    plain = not fields.get("lora_name") and not (isinstance(extra, list) and extra and extra[0])
    if not sound:
        return Stored(keys, parent, (), 0, plain)
    return Stored(keys, parent, tuple(tokens or ()), int(size or 0), plain)


def _keys(hashes: Any) -> tuple[int, ...]:
    if not isinstance(hashes, list):
        return ()
    found = [_key(each) for each in hashes[:BLOCKS_MAX]]
    return tuple(key for key in found if key is not None)


def _key(block_hash: Any) -> int | None:
    if type(block_hash) is int:
        return block_hash & KEY_MASK
    return key_of(block_hash) if isinstance(block_hash, bytes) and len(block_hash) >= 8 else None


class Verdict(Enum):
    """What a batch's number says."""

    NEXT = "next"
    KNOWN = "known"
    GAP = "gap"
    RESTART = "restart"


class Numbering:
    """Follows the numbers of a publisher's batches, which begin at 0 in each process.

    ``expected`` is the first that has not been taken.
    """

    def __init__(self) -> None:
        self.expected = 0
        self._live: int | None = None

    def take(self, number: int) -> Verdict:
        """Judge a batch that was published just now. After GAP or RESTART a replay from
        ``expected`` is due; then ``resume`` takes up the thread."""
        restarted = self._live is not None and number <= self._live
        self._live = number
        if restarted:
            self.expected = 0
            return Verdict.RESTART
        if number < self.expected:
            return Verdict.KNOWN
        if number > self.expected:
            return Verdict.GAP
        self.expected += 1
        return Verdict.NEXT

    def replayed(self, number: int) -> int:
        """Judge a batch of a replay: return how many before it are lost, -1 if it is known."""
        lost = number - self.expected
        if lost < 0:
            return -1
        self.expected = number + 1
        return lost

    def resume(self, number: int) -> int:
        """Go on with the batch at which the gap was seen; return how many are lost for good."""
        return self.replayed(number)
