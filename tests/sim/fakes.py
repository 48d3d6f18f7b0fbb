"""Segment files in miniature: page owners, a slot table, and a few bytes for each page.

Writers and readers follow the page-owner protocol and yield between any two memory accesses, so
that a simulation can stall them anywhere.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field

from moonpool.core.messages import Found

PAGE = 4096


@dataclass
class Entry:
    """A table entry; ``committed`` false is WRITING."""

    key: bytes
    parent: bytes
    size: int
    capacity: int
    generation: int
    offset: int
    committed: bool = False
    checksum: int = 1

    @property
    def pages(self) -> range:
        first = self.offset // PAGE
        return range(first, first + self.capacity // PAGE)


@dataclass
class File:
    """What a node's segment file holds; it outlives the node's process."""

    page_count: int
    slots: int
    epoch: int = 0
    owners: list[int] = field(init=False)
    chunks: list[bytes] = field(init=False)
    entries: dict[int, Entry] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.owners = [0] * self.page_count
        self.chunks = [b""] * self.page_count

    def generation_max(self) -> int:
        return max([*self.owners, *(entry.generation for entry in self.entries.values())])

    def is_alive(self, entry: Entry) -> bool:
        return entry.committed and all(self.owners[p] == entry.generation for p in entry.pages)

    def scan(self) -> list[Found]:
        """Return what a recovery finds, unfinished writes first; drop overwritten entries."""
        found: list[Found] = []
        for index, entry in list(self.entries.items()):
            if entry.committed and not self.is_alive(entry):
                del self.entries[index]
                continue
            found.append(
                Found(
                    key=entry.key,
                    parent=entry.parent,
                    size=entry.size,
                    capacity=entry.capacity,
                    checksum=entry.checksum,
                    generation=entry.generation,
                    index=index,
                    offset=entry.offset,
                    writing=not entry.committed,
                )
            )
        return sorted(found, key=lambda each: not each.writing)

    def drop(self, index: int, generation: int | None = None) -> None:
        entry = self.entries.get(index)
        if entry is not None and generation in (None, entry.generation):
            del self.entries[index]

    def write(self, index: int, entry: Entry, chunks: list[bytes]) -> Generator[None, None, bool]:
        """Write an object, yielding between accesses; return whether it is sealed."""
        if self.epoch != entry.generation >> 32:
            return False
        self.entries[index] = entry
        yield
        # Looked at again behind the entry: a recovery sets the epoch, then scans the table, so
        # either it has seen this entry or this writer sees the new epoch.
        if self.epoch != entry.generation >> 32 or any(
            self.owners[page] > entry.generation for page in entry.pages
        ):
            self.drop(index, entry.generation)
            return False
        for page in entry.pages:
            self.owners[page] = entry.generation
            yield
        for page, chunk in zip(entry.pages, chunks, strict=False):
            self.chunks[page] = chunk
            yield
        entry.committed = True
        return True

    def read(
        self, offset: int, pages: int, generation: int
    ) -> Generator[None, None, list[bytes] | None]:
        """Read an object, yielding between accesses; return its bytes, None for a miss."""
        where = range(offset // PAGE, offset // PAGE + pages)
        if any(self.owners[page] != generation for page in where):
            return None
        copied: list[bytes] = []
        for page in where:
            yield
            copied.append(self.chunks[page])
        yield
        intact = all(self.owners[page] == generation for page in where)
        return copied if intact else None
