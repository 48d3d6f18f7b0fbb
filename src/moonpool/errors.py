"""Every error moonpool raises: one tree, each class with the numeric code of the Mooncake API.

A message names what was asked, what was found and what is allowed, so that one line is enough.
"""

from __future__ import annotations

from typing import ClassVar


class MoonpoolError(Exception):
    """Base of all errors of moonpool. ``code`` is the Mooncake API's number for it."""

    code: ClassVar[int] = -1


class ConfigError(MoonpoolError):
    """A configuration key, value or combination that cannot be used; commands exit with 2."""

    code = -600


class InvalidArgumentError(MoonpoolError, ValueError):
    """An argument that can never be right; nothing was changed."""

    code = -600


class InvalidKeyError(InvalidArgumentError):
    """An empty key or one longer than 4 KiB."""


class ValueTooLargeError(InvalidArgumentError):
    """A value larger than any segment of the pool could ever hold."""


class BufferTooSmallError(InvalidArgumentError):
    """The destination is smaller than the object."""


class BufferNotRegisteredError(InvalidArgumentError):
    """A zero-copy call named memory outside every registered buffer."""


class BufferAlreadyRegisteredError(InvalidArgumentError):
    """The buffer overlaps one that is registered already."""


class NoSpaceError(MoonpoolError):
    """The pool stayed full until the put's deadline."""

    code = -200


class PinQuotaError(MoonpoolError):
    """As much of the pool is pinned for good as may be."""

    code = -1020


class VersionMismatchError(MoonpoolError):
    """The two ends share no protocol version."""

    code = -300


class IllegalClientError(MoonpoolError):
    """A client named something that belongs to another client."""

    code = -601


class InvalidWriteError(MoonpoolError):
    """A commit of a put that is not in progress (any more)."""

    code = -700


class NotReadyError(MoonpoolError):
    """The object's put has not been committed yet."""

    code = -703


class NotFoundError(MoonpoolError, KeyError):
    """No such object."""

    code = -704

    def __str__(self) -> str:
        return Exception.__str__(self)


class AlreadyExistsError(MoonpoolError):
    """The key is taken; objects are immutable."""

    code = -705


class LeasedError(MoonpoolError):
    """The object is being read; it can be removed when the lease ends, or by force."""

    code = -706


class ReplicaNotFoundError(MoonpoolError):
    """No copy is where one was said to be, or none can be made there."""

    code = -710


class TenantQuotaError(MoonpoolError):
    """A tenant's memory is full of what it reads or has pinned."""

    code = -1700


class TenantNotRegisteredError(MoonpoolError):
    """A tenant that the master does not know wants to put."""

    code = -1701


class LeaseExpiredError(MoonpoolError):
    """A transfer outlived its lease; its bytes were thrown away."""

    code = -707


class TransferError(MoonpoolError):
    """Moving bytes failed."""

    code = -800


class ChecksumError(TransferError):
    """The bytes that arrived are not the bytes that were put."""

    code = -801


class MasterUnreachableError(MoonpoolError):
    """The master cannot be reached."""

    code = -900


class NotLeaderError(MasterUnreachableError):
    """This master does not lead. ``leader`` is the address of the one that does in ``epoch``, as
    far as it knows; empty if it does not."""

    code = -1010

    def __init__(self, message: str, leader: str = "", epoch: int = 0) -> None:
        super().__init__(message)
        self.leader = leader
        self.epoch = epoch


class DeadlineError(MasterUnreachableError, TimeoutError):
    """No answer before the deadline."""

    code = -901


class ProtocolError(MoonpoolError):
    """A message that is truncated, malformed or too large; its connection is closed."""

    code = -900


class NotSupportedError(MoonpoolError):
    """The pool is of a kind that cannot do this, such as a Mooncake cluster."""

    code = -1012


_BY_CODE: dict[int, type[MoonpoolError]] = {
    cls.code: cls
    for cls in (
        MoonpoolError,
        InvalidArgumentError,
        NoSpaceError,
        PinQuotaError,
        VersionMismatchError,
        IllegalClientError,
        InvalidWriteError,
        NotReadyError,
        NotFoundError,
        AlreadyExistsError,
        LeasedError,
        LeaseExpiredError,
        ReplicaNotFoundError,
        TenantQuotaError,
        TenantNotRegisteredError,
        TransferError,
        ChecksumError,
        MasterUnreachableError,
        NotLeaderError,
        DeadlineError,
        NotSupportedError,
    )
}


def error_for(code: int, message: str) -> MoonpoolError:
    """Return the exception that stands for a negative result code."""
    return _BY_CODE.get(code, MoonpoolError)(message)
