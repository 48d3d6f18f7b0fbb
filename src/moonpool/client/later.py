"""Puts of which the bytes come later: the key is taken at once, as in Mooncake's sessions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from moonpool.client.memory import span_of, whole
from moonpool.client.putting import Batch, Putter
from moonpool.client.wishes import Wishes
from moonpool.core.messages import Grant, PutItem
from moonpool.transport.base import I64, Pieces


@dataclass(frozen=True, slots=True)
class Begun:
    """A put that was begun: its key and size, where its bytes will go, and the epoch of that."""

    key: bytes
    size: int
    grant: Grant
    epoch: int
    wishes: Wishes


class Later:
    """Begins puts and ends them. Every verb raises MasterUnreachableError."""

    def __init__(self, putter: Putter) -> None:
        self._putter = putter

    def begin(
        self, keys: Sequence[bytes], sizes: Sequence[int], wishes: Wishes
    ) -> list[Begun | int]:
        """Take packed keys; return what was begun or a code for each."""
        items = [PutItem(key, size) for key, size in zip(keys, sizes, strict=True)]
        grants, epoch = self._putter.begin(items, wishes)
        return [
            grant.code or Begun(item.key, item.size, grant, epoch, wishes)
            for item, grant in zip(items, grants, strict=True)
        ]

    def finish(self, begun: Begun, value: memoryview) -> int:
        """Write an object's bytes, all of them, and make it readable; return 0 or a code."""
        pieces: Pieces = whole((span_of(value),))
        batch = Batch([begun.key], [begun.size], [], pieces, begun.wishes)
        codes: I64 = self._putter.finish(batch, [begun.grant], begun.epoch)
        return int(codes[0])

    def abandon(self, begun: Sequence[Begun]) -> None:
        """Give keys and space back."""
        self._putter.abandon(each.grant for each in begun)
