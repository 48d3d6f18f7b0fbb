"""What a store can be asked without moving bytes."""

from __future__ import annotations

import builtins
from collections.abc import Iterator, Sequence

from moonpool.client.answers import as_many, expect
from moonpool.client.channel import Channel
from moonpool.client.keeping import Keeping
from moonpool.client.naming import AnyKey, all_packed, packed, shown
from moonpool.core.keys import DIGEST_BYTES, NAMESPACE_BYTES_MAX, key_of
from moonpool.core.messages import (
    BATCH_ITEMS_MAX,
    MATCH_DIGESTS_MAX,
    Changes,
    Codes,
    Done,
    Drain,
    Existing,
    Exists,
    GetChanges,
    GetKeys,
    GetStatus,
    Keys,
    List,
    Listed,
    Match,
    Matched,
    MatchKeys,
    ObjectInfo,
    Prefetch,
    Remove,
    RemoveAll,
    Stat,
    Status,
)
from moonpool.errors import NotFoundError, error_for

PAGE_OBJECTS = 1000


class Lookups(Keeping):
    """The part of Store that asks the master only. Every method raises MasterUnreachableError, and
    InvalidKeyError for what is no key."""

    def __init__(self, channel: Channel) -> None:
        super().__init__(channel)
        self._disks = False

    def exists(self, key: AnyKey) -> bool:
        """Tell whether the object can be read. Changes nothing."""
        name = packed(key)
        board = self._channel.board()
        there = None if board is None else board.has(name)
        return self._exist([name])[0] if there is None else there

    def exists_batch(self, keys: Sequence[AnyKey]) -> builtins.list[bool]:
        """Tell which objects can be read. Changes nothing."""
        present: builtins.list[bool] = []
        for part in _parts(keys):
            board = self._channel.board()
            there = None if board is None else board.which(part)
            present += self._exist(part) if there is None else there.tolist()
        return present

    def _exist(self, names: builtins.list[bytes]) -> builtins.list[bool]:
        reply = expect(Existing, self._channel.call(Exists(names)))
        return [bool(each) for each in as_many(reply.present, len(names))]

    def match_prefix(self, keys: Sequence[AnyKey]) -> int:
        """Return how many leading keys are in the pool. Changes nothing."""
        count = 0
        for part in _parts(keys):
            found = expect(Matched, self._channel.call(MatchKeys(part))).count
            count += found
            if found < len(part):
                break
        return count

    def match_digests(
        self, namespace: bytes, digests: bytes, stride: int = 1, digest_bytes: int = 16
    ) -> int:
        """Return how many leading blocks are in the pool. Changes nothing.

        digests: names of ``digest_bytes`` each in one namespace, in prefix order, one after the
        other. stride: objects end at every so many blocks; a prompt's tail may end at any.
        Raises InvalidArgumentError for more than MATCH_DIGESTS_MAX digests.
        """
        board = self._channel.board()
        if board is not None and _is_plain(namespace, digests, stride, digest_bytes):
            count = board.prefix(namespace, digests, stride)
            if count is not None:
                return count
        request = Match(namespace, bytes(digests), digest_bytes, stride)
        answer = expect(Matched, self._channel.call(request))
        self._disks = answer.disks
        return answer.count

    def prefetch(
        self, namespace: bytes, digests: bytes, stride: int = 1, digest_bytes: int = 16
    ) -> int:
        """Have what only disks hold of a prefix read into memory, as it will be asked for; return
        how many objects are on their way now. Arguments are as of ``match_digests``, by which the
        prefix was found. Costs nothing in a pool without disks.
        """
        board = self._channel.board()
        if not (self._disks if board is None else board.any_on_disk()):
            return 0
        request = Prefetch(namespace, bytes(digests), digest_bytes, stride)
        return expect(Matched, self._channel.call(request)).count

    def size(self, key: AnyKey) -> int:
        """Return the object's size in bytes, or raise NotFoundError."""
        return self.stat(key).size

    def stat(self, key: AnyKey) -> ObjectInfo:
        """Return what is known of an object (also of one that is being put), or raise
        NotFoundError."""
        reply = expect(Listed, self._channel.call(Stat(packed(key))))
        if not reply.objects:
            raise NotFoundError(f"{shown(key)}: not in the pool")
        return reply.objects[0]

    def list(self, prefix: str = "", namespace: bytes | None = None) -> Iterator[ObjectInfo]:
        """Yield the objects whose name starts with ``prefix``, the oldest first.

        namespace: None for all, b"" for keys that people chose.
        """
        after = 0
        start = prefix.encode("utf-8", "surrogateescape")
        while True:
            request = List(namespace, start, after, PAGE_OBJECTS)
            page = expect(Listed, self._channel.call(request))
            yield from page.objects
            if page.next <= after:
                return
            after = page.next

    def changes(self, first: int, limit: int = 4096) -> Changes:
        """Return which engines' blocks came and went, from a change's number on; 0 only tells the
        number to begin with. ``lost``: they are not all kept; ask for ``blocks``, then go on."""
        return expect(Changes, self._channel.call(GetChanges(first, limit)))

    def blocks(self, after: int = -1, limit: int = 4096) -> Keys:
        """Return a page of the engines' blocks in memory, the oldest first; ``next`` is the
        ``after`` of the page that follows, 0 at the end."""
        return expect(Keys, self._channel.call(GetKeys(after, limit)))

    def status(self) -> Status:
        """Return the pool's state."""
        return expect(Status, self._channel.call(GetStatus()))

    def drain_node(self, node: str, on: bool = True) -> None:
        """Begin the drain of a node, or end it: nothing new goes there, and what it holds is
        copied to others; ``status().drains`` says how far it is. Raises NotFoundError."""
        expect(Done, self._channel.call(Drain(node, on)))

    def remove(self, key: AnyKey, force: bool = False) -> None:
        """Remove an object. Raises NotFoundError, NotReadyError while it is being put, and
        LeasedError unless ``force``."""
        code = self.remove_batch((key,), force)[0]
        if code:
            raise error_for(code, shown(key))

    def remove_batch(self, keys: Sequence[AnyKey], force: bool = False) -> builtins.list[int]:
        """Remove objects; return a code for each: 0, -704 not there, -706 leased, ..."""
        codes: builtins.list[int] = []
        for part in _parts(keys):
            reply = expect(Codes, self._channel.call(Remove(part, force)))
            codes += as_many(reply.codes, len(part))
        return codes

    def remove_all(self, prefix: str = "", force: bool = False) -> int:
        """Remove all objects whose name starts with ``prefix``, or all of the pool if it is empty;
        return how many there were. Leased ones stay unless ``force``."""
        start = key_of(prefix) if prefix else b""
        return expect(Matched, self._channel.call(RemoveAll(start, force))).count


def _is_plain(namespace: bytes, digests: bytes, stride: int, digest_bytes: int) -> bool:
    """Tell whether a lookup is one of block digests, with nothing wrong about it."""
    count, rest = divmod(len(digests), DIGEST_BYTES)
    return (
        digest_bytes == DIGEST_BYTES
        and not rest
        and count <= MATCH_DIGESTS_MAX
        and 1 <= stride <= MATCH_DIGESTS_MAX
        and len(namespace) <= NAMESPACE_BYTES_MAX
    )


def _parts(keys: Sequence[AnyKey]) -> Iterator[builtins.list[bytes]]:
    names = all_packed(keys)
    for first in range(0, len(names), BATCH_ITEMS_MAX):
        yield names[first : first + BATCH_ITEMS_MAX]
