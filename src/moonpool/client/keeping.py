"""What is to stay in memory, and what may go first: pins and sessions."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence

from moonpool.client.answers import as_many, expect
from moonpool.client.channel import Channel
from moonpool.client.naming import AnyKey, all_packed
from moonpool.core.messages import (
    BATCH_ITEMS_MAX,
    SESSION_CHARS_MAX,
    SESSION_KEYS_MAX,
    Codes,
    Done,
    EndSession,
    Matched,
    Pin,
    Request,
    Unpin,
    UseSession,
)
from moonpool.errors import InvalidArgumentError, NotSupportedError
from moonpool.protocol.versions import PINS_SINCE


class Keeping:
    """The part of Store that says how long objects are worth keeping. Every method raises
    MasterUnreachableError, InvalidKeyError for what is no key, and NotSupportedError if the master
    is older than this client."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def pin(self, keys: Sequence[AnyKey], soft_s: float | None = None) -> builtins.list[int]:
        """Keep objects in memory; return a code for each: 0, -704 not there, -703 being put, -1020
        over the quota (see PinQuotaError).

        soft_s: None: eviction never takes them. Seconds: for so long only where nothing else is
        left; below 0: for as long as the master says. Raises InvalidArgumentError for a soft pin of
        0 seconds or longer than the master allows.
        """
        if soft_s == 0:
            raise InvalidArgumentError("soft_s=0: above 0, or below 0 for the master's own time")
        return self._each(keys, lambda part: Pin(part, soft_s or 0.0))

    def unpin(self, keys: Sequence[AnyKey]) -> builtins.list[int]:
        """End pins of either kind; return a code for each: 0, -704 not there, -703 being put."""
        return self._each(keys, Unpin)

    def use_session(self, session: str, keys: Sequence[AnyKey]) -> None:
        """Say that a session uses objects and all that they continue (their parents, and so on).

        session: a name of 1 to 128 characters, shared by all clients of the pool. Objects that are
        not in memory do not count. Of a session's last uses 64 are kept.
        """
        names = all_packed(keys)
        _check_session(session)
        self._check_version()
        for at in range(0, len(names), SESSION_KEYS_MAX):
            part = names[at : at + SESSION_KEYS_MAX]
            expect(Done, self._channel.call(UseSession(session, part)))

    def end_session(self, session: str) -> int:
        """Say that a session has ended: what no other session uses, and nothing else hangs on, is
        evicted before all else, unless it is used again. Return how many objects that are."""
        _check_session(session)
        self._check_version()
        return expect(Matched, self._channel.call(EndSession(session))).count

    @property
    def keeps(self) -> bool:
        """Whether the master knows pins and sessions."""
        return self._channel.version >= PINS_SINCE

    def _check_version(self) -> None:
        if not self.keeps:
            raise NotSupportedError("pins and sessions: the pool's master does not know them")

    def _each(
        self, keys: Sequence[AnyKey], ask: Callable[[builtins.list[bytes]], Request]
    ) -> builtins.list[int]:
        names = all_packed(keys)
        self._check_version()
        codes: builtins.list[int] = []
        for at in range(0, len(names), BATCH_ITEMS_MAX):
            part = names[at : at + BATCH_ITEMS_MAX]
            codes += as_many(expect(Codes, self._channel.call(ask(part))).codes, len(part))
        return codes


def _check_session(session: str) -> None:
    if not 0 < len(session) <= SESSION_CHARS_MAX:
        raise InvalidArgumentError(
            f"session: a name of {len(session)} characters; 1 to {SESSION_CHARS_MAX} are allowed"
        )
