"""The enumerations of ``mooncake.store``: numbers with names that compare only with their own."""

from __future__ import annotations

from enum import Enum
from typing import Any


class _Named(Enum):
    def __int__(self) -> int:
        return int(self.value)

    __index__ = __int__

    def __str__(self) -> str:
        return f"{type(self).__name__}.{self.name}"

    def __repr__(self) -> str:
        return f"<{self}: {self.value}>"


class SoftPinAction(_Named):
    """What a put does about an object's soft pin."""

    PRESERVE = 0
    ENABLE = 1
    DISABLE = 2


class ObjectDataType(_Named):
    """What an object is, for whoever looks at a pool; nothing depends on it."""

    UNKNOWN = 0
    KVCACHE = 1
    TENSOR = 2
    WEIGHT = 3
    SAMPLE = 4
    ACTIVATION = 5
    GRADIENT = 6
    OPTIMIZER_STATE = 7
    METADATA = 8
    GENERAL = 9


class ReplicaStatus(_Named):
    """What a replica can be used for: COMPLETE ones are readable."""

    UNDEFINED = 0
    INITIALIZED = 1
    PROCESSING = 2
    COMPLETE = 3
    REMOVED = 4
    FAILED = 5


class TaskType(_Named):
    """What a task does."""

    REPLICA_COPY = 0
    REPLICA_MOVE = 1


class TaskStatus(_Named):
    """How far a task is."""

    PENDING = 0
    PROCESSING = 1
    SUCCESS = 3
    FAILED = 2


ENUMS: tuple[type[Enum], ...] = (
    SoftPinAction,
    ObjectDataType,
    ReplicaStatus,
    TaskType,
    TaskStatus,
)


def exported() -> dict[str, Any]:
    """Return the members that ``mooncake.store`` has as names of its own; a later enumeration's
    member hides an earlier one's of the same name there, as it does here."""
    hidden = SoftPinAction
    return {each.name: each for kind in ENUMS if kind is not hidden for each in kind}
