"""Mooncake's drain jobs, made of the drains of nodes: a job is a name for some of them.

A job succeeds once its nodes hold nothing any more; what they had is then with others. Jobs live as
long as the master; the drains themselves last (nodes know of them).
"""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from moonpool.core import codes
from moonpool.core.messages import Drain, Failed, Status
from moonpool.master.admin_answers import failure, json_page
from moonpool.master.http import Asked, Page
from moonpool.master.service import Service

CREATED, RUNNING = (0, "CREATED"), (2, "RUNNING")
SUCCEEDED, CANCELED = (3, "SUCCEEDED"), (5, "CANCELED")
JOBS_MAX: Final = 10_000
NO_SEGMENT, NO_JOB, NOT_NOW = -101, -1402, -1010
_MESSAGES = {
    CREATED: "Drain job created",
    RUNNING: "Drain job running",
    SUCCEEDED: "Drain job finished successfully",
    CANCELED: "Drain job canceled",
}


@dataclass
class Job:
    """A drain of some nodes, as it was asked for and as it stands."""

    number: str
    nodes: list[str]
    objects: int
    nbytes: int
    state: tuple[int, str] = CREATED
    created: float = field(default_factory=time.time)
    updated: float = field(default_factory=time.time)
    left_objects: int = 0
    left_bytes: int = 0
    active: int = 0
    stuck: int = 0

    def turn(self, state: tuple[int, str]) -> None:
        """Note that something happened."""
        if state != self.state:
            self.updated = time.time()
        self.state = state


class Drains:
    """The pages of drain jobs."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._jobs: dict[str, Job] = {}

    def create(self, asked: Asked) -> Page:
        """Begin to drain ``segments``, which are names of nodes."""
        try:
            said = msgspec.json.decode(asked.body)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return failure(codes.INVALID, "Invalid JSON body: an object is expected")
        names = said.get("segments") if isinstance(said, dict) else None
        if not isinstance(names, list) or not all(isinstance(n, str) and n for n in names):
            return failure(codes.INVALID)
        if not names or len(self._jobs) >= JOBS_MAX:
            return failure(codes.INVALID)
        held = self._held()
        if not set(names) <= set(held):
            return failure(NO_SEGMENT, status=404)
        nodes = list(dict.fromkeys(names))
        for node in nodes:
            if isinstance(self._service.change(Drain(node)), Failed):
                return failure(NO_SEGMENT, status=404)
        number = f"{secrets.randbits(63)}-{secrets.randbits(63)}"
        objects = sum(held[node] for node in nodes)
        self._jobs[number] = Job(number, nodes, objects, 0, left_objects=objects)
        self._jobs[number].nbytes = self._left(self._jobs[number], self._fresh())[1]
        return _said(self._jobs[number])

    def query(self, asked: Asked) -> Page:
        """Return how far a job is."""
        number = asked.query.get("job_id", "")
        if not _is_number(number):
            return failure(codes.INVALID, "Missing or invalid job_id")
        job = self._jobs.get(number)
        if job is None:
            return failure(NO_JOB, status=404)
        self._look(job)
        return json_page(_all_of(job))

    def cancel(self, asked: Asked) -> Page:
        """End a job; what has moved stays where it is."""
        number = asked.query.get("job_id", "")
        if not _is_number(number):
            return failure(codes.INVALID, "Missing or invalid job_id")
        job = self._jobs.get(number)
        if job is None:
            return failure(NO_JOB, status=404)
        self._look(job)
        if job.state in (SUCCEEDED, CANCELED):
            return failure(NOT_NOW, status=409)
        others = {n for j in self._jobs.values() if j is not job and _runs(j) for n in j.nodes}
        for node in set(job.nodes) - others:
            self._service.change(Drain(node, on=False))
        job.turn(CANCELED)
        return _said(job)

    def _look(self, job: Job) -> None:
        if not _runs(job):
            return
        status = self._fresh()
        job.left_objects, job.left_bytes, job.active, job.stuck = self._left(job, status)
        drains = {each.node: each for each in status.drains}
        there = {each.info.node for each in status.segments}
        # A node that has left, or was told to take objects again, holds this job up no longer.
        done = all(node not in there or drains[node].empty for node in job.nodes if node in drains)
        job.turn(SUCCEEDED if done else RUNNING)

    def _left(self, job: Job, status: Status) -> tuple[int, int, int, int]:
        """Return objects, bytes, whether bytes are on their way, and objects without room."""
        ours = [each for each in status.drains if each.node in job.nodes]
        return (
            sum(each.objects for each in ours),
            sum(each.nbytes for each in ours),
            sum(each.copying_bytes > 0 for each in ours),
            sum(each.stuck for each in ours),
        )

    def _held(self) -> dict[str, int]:
        held: dict[str, int] = {}
        for each in self._service.status().segments:
            held[each.info.node] = held.get(each.info.node, 0) + each.objects
        return held

    def _fresh(self) -> Status:
        return self._service.status()


def _runs(job: Job) -> bool:
    return job.state in (CREATED, RUNNING)


def _is_number(text: str) -> bool:
    first, dash, second = text.partition("-")
    return bool(dash) and first.isdecimal() and second.isdecimal()


def _said(job: Job) -> Page:
    body = {"success": True, "job_id": job.number, "status": job.state[1]}
    return json_page(body | {"error_code": 0, "error_message": ""})


def _all_of(job: Job) -> dict[str, Any]:
    return {
        "success": True,
        "job_id": job.number,
        "type": 0,
        "type_name": "DRAIN",
        "status": job.state[0],
        "status_name": job.state[1],
        "created_at_ms_epoch": int(job.created * 1000),
        "last_updated_at_ms_epoch": int(job.updated * 1000),
        "segments": job.nodes,
        "succeeded_units": max(0, job.objects - job.left_objects),
        "failed_units": 0,
        "blocked_units": job.stuck,
        "active_units": job.active,
        "migrated_bytes": max(0, job.nbytes - job.left_bytes),
        "message": _MESSAGES[job.state],
        "error_code": 0,
        "error_message": "",
    }
