"""Objects named by digests in a namespace, as arrays: a million of them are told in a second."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from moonpool.core.adopting import packed_rows
from moonpool.core.keys import DIGEST_BYTES
from moonpool.core.messages import PACKED_COLUMNS, AnnouncePacked, Found
from moonpool.transport.layout import ENTRY, ENTRY_BYTES, PARENT_BYTES_MAX

NAMESPACES_MAX = 16
"""Objects of more namespaces than these are told one by one."""

U8 = npt.NDArray[np.uint8]
Mask = npt.NDArray[np.bool_]
Numbers = dict[str, npt.NDArray[np.uint64]]
_KEY, _PARENT = ENTRY.fields["key"][1], ENTRY.fields["parent"][1]  # type: ignore[index]


@dataclass(frozen=True, slots=True)
class Digests:
    """Committed objects of one namespace, the oldest first.

    digests, parents (zeros: none): shape (n, 16); numbers: the columns of AnnouncePacked.
    """

    namespace: bytes
    digests: U8
    parents: U8
    numbers: dict[str, npt.NDArray[np.uint64]]

    def __len__(self) -> int:
        return len(self.digests)

    def pieces(self, handle: int, size: int) -> Iterator[AnnouncePacked]:
        """Yield announcements of up to ``size`` objects; none of them is the last one."""
        columns = [self.numbers[name] for name in PACKED_COLUMNS]
        for at in range(0, len(self), size):
            part = slice(at, at + size)
            yield AnnouncePacked(
                handle,
                self.namespace,
                self.digests[part].tobytes(),
                self.parents[part].tobytes(),
                packed_rows([column[part] for column in columns]),
                last=False,
            )

    def but(self, lost: Mask) -> Digests:
        """Return those that are not lost; lost: shape (n,)."""
        kept = {name: column[~lost] for name, column in self.numbers.items()}
        return Digests(self.namespace, self.digests[~lost], self.parents[~lost], kept)

    def found(self) -> Iterator[Found]:
        """Yield the objects one by one."""
        head, none = bytes([len(self.namespace)]) + self.namespace, bytes(DIGEST_BYTES)
        columns = [self.numbers[name].tolist() for name in PACKED_COLUMNS]
        for i, numbers in enumerate(zip(*columns, strict=True)):
            parent = self.parents[i].tobytes()
            yield Found(
                key=head + self.digests[i].tobytes(),
                parent=b"" if parent == none else head + parent,
                **dict(zip(PACKED_COLUMNS, numbers, strict=True)),
            )


class Packer:
    """Sorts table entries by their namespaces."""

    def __init__(self) -> None:
        self._parts: dict[bytes, list[tuple[U8, U8, Numbers]]] = {}

    def take(self, entries: Any, indexes: npt.NDArray[np.int64]) -> Mask:
        """Take the entries (copies, shape (n,)) that are named by digests; tell which are left."""
        left = np.ones(len(entries), bool)
        if not len(entries):
            return left
        raw = entries.view(np.uint8).reshape(-1, ENTRY_BYTES)
        todo = entries["key_bytes"] == raw[:, _KEY].astype(np.uint16) + 1 + DIGEST_BYTES
        todo &= entries["key_bytes"] <= PARENT_BYTES_MAX
        while todo.any():
            width = int(raw[int(todo.argmax()), _KEY]) + 1
            head = raw[int(todo.argmax()), _KEY : _KEY + width].tobytes()
            if head not in self._parts and len(self._parts) >= NAMESPACES_MAX:
                break
            same = todo & _starts(raw, _KEY, head)
            todo &= ~same
            chosen = same & _has_plain_parent(raw, entries, head)
            # A digest of zeros stands for none: such an object is told by itself.
            chosen &= raw[:, _KEY + width : _KEY + width + DIGEST_BYTES].any(axis=1)
            left &= ~chosen
            digests = raw[chosen, _KEY + width : _KEY + width + DIGEST_BYTES]
            parents = raw[chosen, _PARENT + width : _PARENT + width + DIGEST_BYTES].copy()
            parents[entries["parent_bytes"][chosen] == 0] = 0
            numbers = {
                name: (indexes if name == "index" else entries[name])[chosen].astype(np.uint64)
                for name in PACKED_COLUMNS
            }
            self._parts.setdefault(head, []).append((digests, parents, numbers))
        return left

    def packed(self) -> list[Digests]:
        """Return what was taken."""
        return [_joined(head[1:], parts) for head, parts in self._parts.items()]


def _starts(raw: U8, at: int, head: bytes) -> Mask:
    found: Mask = (raw[:, at : at + len(head)] == np.frombuffer(head, np.uint8)).all(axis=1)
    return found


def _has_plain_parent(raw: U8, entries: Any, head: bytes) -> Mask:
    """Tell which entries have no parent, or one of the same namespace that is not all zeros."""
    width = len(head) + DIGEST_BYTES
    plain = (entries["parent_bytes"] == width) & _starts(raw, _PARENT, head)
    plain &= raw[:, _PARENT + len(head) : _PARENT + width].any(axis=1)
    found: Mask = plain | (entries["parent_bytes"] == 0)
    return found


def _joined(namespace: bytes, parts: list[tuple[U8, U8, Numbers]]) -> Digests:
    digests, parents = (np.concatenate([part[i] for part in parts]) for i in (0, 1))
    numbers = {name: np.concatenate([part[2][name] for part in parts]) for name in PACKED_COLUMNS}
    generation = numbers["generation"]
    if (generation[1:] >= generation[:-1]).all():
        return Digests(namespace, digests, parents, numbers)
    order = np.argsort(generation, kind="stable")
    sorted_ = {name: column[order] for name, column in numbers.items()}
    return Digests(namespace, digests[order], parents[order], sorted_)
