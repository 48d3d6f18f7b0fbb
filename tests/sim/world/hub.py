"""Virtual time, processes and threads: greenlets that a seeded scheduler resumes one by one."""

from __future__ import annotations

import fcntl
import heapq
import os
import random
import traceback
import zlib
from asyncio import events
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import greenlet

WALL = 1_800_000_000.0
"""When a simulation begins, in seconds since 1970."""
_STEP_S = 20e-6
"""The mean time between being woken and running."""


class Killed(greenlet.GreenletExit):  # type: ignore[misc]  # greenlet has no types
    """Ends what is left of a simulation's threads when it is over."""


class Process:
    """A process of the simulation: its clock, and what ends with it."""

    def __init__(self, hub: Hub, name: str, host: str) -> None:
        self.hub = hub
        self.name = name
        self.host = host
        self.alive = True
        self.frozen_until = 0.0
        self.held: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self.stalled = 0.0
        self.parts: dict[str, Any] = {}
        self.offset, self.skew, self.rate = hub.clock_of(host)
        self.fds: set[int] = set()
        self.ends: dict[Any, None] = {}
        self.listeners: list[Any] = []
        self.on_kill: list[Callable[[], None]] = []

    def monotonic(self) -> float:
        return self.offset + self.hub.now * self.rate

    def wall(self) -> float:
        return WALL + self.skew + self.hub.now * self.rate

    def kill(self) -> None:
        """Be gone at once, as by kill -9: nothing of it runs any more, not even its ``finally``."""
        if not self.alive:
            return
        self.hub.note(f"kill {self.name}")
        self.alive = False
        for listener in self.listeners:
            listener.close()
        for end in list(self.ends):
            end.died()
        for fd in sorted(self.fds):
            with suppress(OSError):
                fcntl.flock(fd, fcntl.LOCK_UN)  # mappings have duplicates of it
                os.close(fd)
        self.fds.clear()
        for each in self.on_kill:
            each()

    def hold(self, call: Callable[..., object], args: tuple[Any, ...]) -> None:
        """Keep something for when it is not frozen any more."""
        if not self.held:
            self.hub.at(self.frozen_until, None, self._thaw)
        self.held.append((call, args))

    def _thaw(self) -> None:
        while self.held and self.alive:
            if self.frozen_until > self.hub.now:
                self.hub.at(self.frozen_until, None, self._thaw)
                return
            call, args = self.held.popleft()
            call(*args)

    def freeze(self, seconds: float) -> None:
        """Do not run for so long, as by SIGSTOP."""
        self.hub.note(f"freeze {self.name} {seconds:.3f}")
        self.frozen_until = max(self.frozen_until, self.hub.now + seconds)
        self.stalled += seconds


class Thread:
    """A greenlet of a process."""

    def __init__(self, process: Process, run: Callable[[], object], name: str) -> None:
        self.process = process
        self.name = name
        self.done = False
        self.parked = False
        self.ticket = 0
        self.loop: events.AbstractEventLoop | None = None
        self.joiners: list[Thread] = []
        self.greenlet = greenlet.greenlet(self._run, process.hub.main)
        self._target = run

    def _run(self, _value: object = None) -> None:
        try:
            self._target()
        except Killed:
            pass
        except BaseException as error:  # noqa: BLE001 - shown and counted as a finding
            self.process.hub.crashed(self, error)
        self.done = True
        for each in self.joiners:
            self.process.hub.wake(each)


class Hub:
    """The scheduler."""

    def __init__(self, seed: int, *, trace: bool = False) -> None:
        self.rng = random.Random(seed)
        self.now = 0.0
        self.thread: Thread | None = None
        self.ending = False
        self.stopped = False
        self.pause = 0.0
        """How often a thread that copies is interrupted at a place where it matters."""
        self.paused_until = 0.0
        self.events = 0
        self.serial = 0
        self.crashes: list[str] = []
        self.trace: list[str] = []
        self.noted = 0
        self._tracing = trace
        self.drift = 0.0
        self._clocks: dict[str, tuple[float, float, float]] = {}
        self._heap: list[tuple[float, int, Process | None, Callable[..., object], tuple[Any, ...]]]
        self._heap = []
        self._threads: list[Thread] = []
        self.main = greenlet.getcurrent()

    # --- what happened ------------------------------------------------------------------------

    def note(self, text: str) -> None:
        """Add a line to the trace, and to its digest."""
        self.noted = zlib.crc32(f"{self.now:.9f} {text}".encode(), self.noted)
        if self._tracing:
            self.trace.append(f"{self.now:11.6f} {text}")

    def crashed(self, thread: Thread, error: BaseException) -> None:
        """Take note of an exception that a thread did not catch."""
        if not self.ending:
            where = traceback.format_exception(error)[-12:]
            self.crashes.append(f"{thread.process.name}/{thread.name}: {''.join(where)}")
            self.stopped = True
            self.note(f"uncaught {thread.process.name} {error!r}")

    def clock_of(self, host: str) -> tuple[float, float, float]:
        """Return a host's monotonic offset, error of its wall clock, and rate."""
        if host not in self._clocks:
            rng, drift = self.rng, self.drift
            rate = 1.0 + rng.uniform(-drift, drift)
            self._clocks[host] = rng.uniform(1e3, 1e6), rng.uniform(-1, 1) * 40 * drift, rate
        return self._clocks[host]

    def number(self) -> int:
        """Return the next of a row of numbers."""
        self.serial += 1
        return self.serial

    # --- scheduling ---------------------------------------------------------------------------

    def at(
        self, when: float, process: Process | None, call: Callable[..., object], *args: Any
    ) -> None:
        """Have something called then, unless its process is dead; later if it is frozen."""
        self.serial += 1
        heapq.heappush(self._heap, (when, self.serial, process, call, args))

    def soon(self, process: Process | None, call: Callable[..., object], *args: Any) -> None:
        """Have something called after a very short random time."""
        self.at(self.now + 2 * _STEP_S * self.rng.random(), process, call, *args)

    def now_or_later(self, process: Process, call: Callable[..., object], *args: Any) -> None:
        """Call something in the middle of an event, unless its process is dead or frozen."""
        if not process.alive:
            return
        if process.frozen_until > self.now or process.held:
            process.hold(call, args)
        else:
            call(*args)

    def run(self, until: float) -> None:
        """Let time pass, until ``stopped`` is set."""
        heap = self._heap
        while heap and heap[0][0] <= until and not self.stopped:
            when, _, process, call, args = heapq.heappop(heap)
            if process is not None:
                if not process.alive:
                    continue
                if process.frozen_until > when or process.held:
                    process.hold(call, args)
                    continue
            self.now = max(self.now, when)
            self.events += 1
            call(*args)
        if not self.stopped:
            self.now = max(self.now, until)

    def spawn(
        self,
        process: Process,
        run: Callable[[], object],
        name: str = "",
        loop: events.AbstractEventLoop | None = None,
    ) -> Thread:
        """Start a thread."""
        thread = Thread(process, run, name)
        thread.loop = loop
        self._threads.append(thread)
        self.soon(process, self._resume, thread, True)
        return thread

    def wake(self, thread: Thread) -> None:
        """Let a parked thread go on soon; a running one is left alone."""
        if not thread.parked:
            return
        thread.parked = False
        thread.ticket += 1
        process = thread.process
        if self.thread is None and process.frozen_until <= self.now and process.alive:
            self._resume(thread, True)  # what woke it is an event of its own
        else:
            self.soon(process, self._resume, thread, True)

    def park(self, seconds: float | None = None) -> bool:
        """Stop the running thread until it is woken, or its clock says so; tell which."""
        thread = self.thread
        if self.ending:
            raise Killed
        if thread is None:
            raise RuntimeError("what waits must run in a thread of the simulation")
        thread.ticket += 1
        thread.parked = True
        if seconds is not None:
            wait = max(0.0, seconds) / thread.process.rate
            self.at(self.now + wait, thread.process, self._expire, thread, thread.ticket)
        woken = self.main.switch()
        if self.ending:
            raise Killed
        return bool(woken)

    def _expire(self, thread: Thread, ticket: int) -> None:
        if thread.parked and thread.ticket == ticket:
            thread.parked = False
            self._resume(thread, False)

    def _resume(self, thread: Thread, value: bool) -> None:
        self.thread = thread
        events._set_running_loop(thread.loop)
        try:
            thread.greenlet.switch(value)
        finally:
            events._set_running_loop(None)
            self.thread = None

    @property
    def process(self) -> Process | None:
        """Whose code runs now."""
        return None if self.thread is None else self.thread.process

    def end(self) -> None:
        """Unwind what still runs; nothing that it does has an effect any more."""
        self.ending = True
        self._heap.clear()
        for thread in self._threads:
            if thread.greenlet and not thread.greenlet.dead:
                self.thread = thread
                with suppress(BaseException):
                    thread.greenlet.throw(Killed)
        self.thread = None
        self._threads.clear()


_hub: Hub | None = None


def hub() -> Hub:
    """Return the simulation that runs."""
    assert _hub is not None, "no simulation runs"
    return _hub


def use(running: Hub | None) -> None:
    """Make one the simulation that runs."""
    global _hub
    _hub = running
