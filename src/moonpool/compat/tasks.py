"""Copying and moving objects to segments, as tasks that are asked about.

The master has nodes copy; a task here asks it until that is done.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from moonpool.compat.base import Base
from moonpool.compat.casting import CastError, Parameter, call, items_of, text, texts, u64
from moonpool.compat.codes import INVALID, NOT_FOUND, NOT_READY, OK, TASK_NOT_FOUND, code_of
from moonpool.compat.connected import Connected
from moonpool.compat.enums import TaskStatus, TaskType
from moonpool.core.messages import ObjectInfo
from moonpool.errors import MoonpoolError

TASKS_MAX = 10_000
TASK_S = 300.0
POLL_S = 0.02
Id = tuple[int, int]
NONE: Id = (0, 0)


@dataclass(repr=False)
class QueryTaskResponse:
    """How far a task is. Times are milliseconds since 1970."""

    id: Id = NONE
    type: TaskType = TaskType.REPLICA_COPY
    status: TaskStatus = TaskStatus.PENDING
    created_at_ms_epoch: int = 0
    last_updated_at_ms_epoch: int = 0
    assigned_client: Id = NONE
    message: str = ""

    def __repr__(self) -> str:
        first, second = self.id
        return (
            f"QueryTaskResponse(id={first}-{second}, type={int(self.type)}, "
            f'status={int(self.status)}, message="{self.message}")'
        )


class Tasks(Base):
    """The calls about tasks."""

    def __init__(self) -> None:
        super().__init__()
        self._tasks: OrderedDict[Id, QueryTaskResponse] = OrderedDict()
        self._tasking = threading.Lock()
        self._hands: ThreadPoolExecutor | None = None

    @call(Parameter("key", text), Parameter("targets", texts))
    def create_copy_task(self, key: str, targets: list[str]) -> tuple[Id, int]:
        """Have an object copied to segments; return the task's id and 0, or a code."""
        if not targets:
            return NONE, INVALID
        return self._create(TaskType.REPLICA_COPY, key, "", targets)

    @call(Parameter("key", text), Parameter("source", text), Parameter("target", text))
    def create_move_task(self, key: str, source: str, target: str) -> tuple[Id, int]:
        """Have an object moved from a segment to another."""
        return self._create(TaskType.REPLICA_MOVE, key, source, [target])

    def _create(self, kind: TaskType, key: str, source: str, targets: list[str]) -> tuple[Id, int]:
        connected = self._connected
        if connected is None:
            return NONE, INVALID
        try:
            name = connected.keys.key(key) if key else b""
            there = {each.info.node for each in connected.store.status().segments}
            info = connected.store.stat(name) if name else None
        except MoonpoolError as error:
            return NONE, code_of(error)
        if info is None:
            return NONE, NOT_FOUND
        moves = kind is TaskType.REPLICA_MOVE
        wrong = moves and (source in targets or source not in nodes_of(info))
        if wrong or not there.issuperset(targets):
            return NONE, INVALID
        return self._begin(kind, lambda: _placed(connected, name, source, targets)), OK

    def _begin(self, kind: TaskType, work: Callable[[], str]) -> Id:
        number, now = (secrets.randbits(64), secrets.randbits(64)), int(time.time() * 1000)
        task = QueryTaskResponse(number, kind, TaskStatus.PENDING, now, now)
        with self._tasking:
            self._tasks[number] = task
            while len(self._tasks) > TASKS_MAX:
                self._tasks.popitem(last=False)
            if self._hands is None:
                self._hands = ThreadPoolExecutor(1, thread_name_prefix="moonpool-tasks")
            self._hands.submit(self._do, task, work)
        return number

    def _do(self, task: QueryTaskResponse, work: Callable[[], str]) -> None:
        self._note(task, TaskStatus.PROCESSING, "")
        try:
            failed = work()
        except Exception as error:  # noqa: BLE001 - told to whoever asks
            failed = str(error)
        status = TaskStatus.FAILED if failed else TaskStatus.SUCCESS
        self._note(task, status, failed or "Task completed successfully")

    def _note(self, task: QueryTaskResponse, status: TaskStatus, message: str) -> None:
        with self._tasking:
            now = int(time.time() * 1000)
            self._tasks[task.id] = replace(
                self._tasks.get(task.id, task),
                status=status,
                message=message,
                last_updated_at_ms_epoch=now,
            )

    @call(Parameter("task_id", lambda value: _id(value)))
    def query_task(self, task_id: Id) -> tuple[QueryTaskResponse | None, int]:
        """Return how far a task of this store is and 0, or None and a code."""
        if self._connected is None:
            return None, INVALID
        with self._tasking:
            found = self._tasks.get(task_id)
        return (None, TASK_NOT_FOUND) if found is None else (replace(found), OK)


def nodes_of(info: ObjectInfo) -> set[str]:
    """Return the nodes that have an object in memory."""
    return {each.partition("/")[0] for each in info.segments}


def _id(value: Any) -> Id:
    found = [u64(each) for each in items_of(value)]
    if len(found) != 2:
        raise CastError
    return found[0], found[1]


def _placed(connected: Connected, key: bytes, source: str, targets: list[str]) -> str:
    """Have an object copied, or moved from ``source``; return why that failed, or nothing."""
    looking, deadline = connected.store.looking, time.monotonic() + TASK_S
    for target in targets:
        while (code := looking.replicate(key, target, source)) == NOT_READY:
            if time.monotonic() > deadline:
                return f"no copy could be made on {target} within {TASK_S:.0f} s"
            time.sleep(POLL_S)
        if code:
            return f"no copy could be made on {target}: {code}"
    return ""
