"""The standard library's ``time``, ``threading``, ``secrets`` and ``random`` in virtual time."""

from __future__ import annotations

import time as real_time
from collections.abc import Callable, Iterable
from typing import Any

from tests.sim.world.hub import WALL, Thread, hub


class Time:
    """In the place of the module ``time``; every process has its own clock."""

    CLOCK_BOOTTIME = real_time.CLOCK_BOOTTIME
    CLOCK_MONOTONIC = real_time.CLOCK_MONOTONIC

    def monotonic(self) -> float:
        running = hub()
        process = running.process
        return running.now if process is None else process.monotonic()

    perf_counter = monotonic

    def time(self) -> float:
        running = hub()
        process = running.process
        return WALL + running.now if process is None else process.wall()

    def monotonic_ns(self) -> int:
        return int(self.monotonic() * 1e9)

    perf_counter_ns = monotonic_ns

    def time_ns(self) -> int:
        # Never the same twice: real clocks do not stand still between two calls.
        return int(self.time() * 1e9) + hub().number()

    def clock_gettime(self, _which: int) -> float:
        return self.monotonic()

    def sleep(self, seconds: float) -> None:
        hub().park(seconds)


class Lock:
    """threading.Lock; in one thread only who waits elsewhere can hold it."""

    def __init__(self) -> None:
        self._owner: Thread | None = None
        self._held = 0
        self._waiting: list[Thread] = []

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        running = hub()
        if running.ending:
            return True
        me = running.thread
        while self._held and (self._owner is not me or not self._again()):
            if not blocking or me is None:
                assert not blocking, "the simulation itself waits for a lock"
                return False
            self._waiting.append(me)
            woken = running.park(None if timeout < 0 else timeout)
            if not woken:
                if me in self._waiting:
                    self._waiting.remove(me)
                return False
        self._owner = me
        self._held += 1
        return True

    def _again(self) -> bool:
        return False

    def release(self) -> None:
        self._held = max(0, self._held - 1)
        if not self._held:
            self._owner = None
            if self._waiting:
                hub().wake(self._waiting.pop(0))

    def locked(self) -> bool:
        return bool(self._held)

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class RLock(Lock):
    """threading.RLock."""

    def _again(self) -> bool:
        return True


class Condition:
    """threading.Condition."""

    def __init__(self, lock: Lock | None = None) -> None:
        self._lock = lock or RLock()
        self._waiting: list[Thread] = []

    def __enter__(self) -> bool:
        return self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        running = hub()
        me = running.thread
        assert me is not None
        self._waiting.append(me)
        held, self._lock._held = self._lock._held, 1
        self._lock.release()
        woken = running.park(timeout)
        if me in self._waiting:
            self._waiting.remove(me)
        self._lock.acquire()
        self._lock._held = held
        return woken

    def wait_for(self, ready: Callable[[], Any], timeout: float | None = None) -> Any:
        clock = Time()
        until = None if timeout is None else clock.monotonic() + timeout
        while not (result := ready()):
            left = None if until is None else until - clock.monotonic()
            if left is not None and left <= 0:
                break
            self.wait(left)
        return result

    def notify(self, count: int = 1) -> None:
        for _ in range(min(count, len(self._waiting))):
            hub().wake(self._waiting.pop(0))

    def notify_all(self) -> None:
        self.notify(len(self._waiting))


class Event:
    """threading.Event."""

    def __init__(self) -> None:
        self._set = False
        self._waiting: list[Thread] = []

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            hub().wake(each)

    def clear(self) -> None:
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        if not self._set and (timeout is None or timeout > 0):
            running = hub()
            me = running.thread
            assert me is not None
            self._waiting.append(me)
            running.park(timeout)
            if me in self._waiting:
                self._waiting.remove(me)
        return self._set


class SimThread:
    """threading.Thread."""

    def __init__(
        self,
        target: Callable[..., object],
        name: str = "",
        args: Iterable[Any] = (),
        daemon: bool | None = None,
        kwargs: dict[str, Any] | None = None,
    ) -> None:
        self.name = name
        self.daemon = daemon
        self.ident: int | None = None
        self._run = lambda: target(*args, **(kwargs or {}))
        self._thread: Thread | None = None

    def start(self) -> None:
        running = hub()
        if running.ending:
            return
        process = running.process
        assert process is not None
        self.ident = running.number()
        self._thread = running.spawn(process, self._run, self.name)

    def is_alive(self) -> bool:
        return self._thread is not None and not self._thread.done

    def join(self, timeout: float | None = None) -> None:
        running = hub()
        if self._thread is None or self._thread.done or running.ending:
            return
        assert running.thread is not None
        self._thread.joiners.append(running.thread)
        running.park(timeout)


class Threading:
    """In the place of the module ``threading``."""

    Lock, RLock, Condition, Event, Thread = Lock, RLock, Condition, Event, SimThread

    def current_thread(self) -> object:
        return hub().thread

    def get_native_id(self) -> int:
        return 0


class Secrets:
    """In the place of the module ``secrets``."""

    def token_hex(self, nbytes: int = 16) -> str:
        return hub().rng.randbytes(nbytes).hex()

    def token_bytes(self, nbytes: int = 16) -> bytes:
        return hub().rng.randbytes(nbytes)

    def randbits(self, bits: int) -> int:
        return hub().rng.getrandbits(bits)


class Random:
    """In the place of the module ``random``."""

    def __getattr__(self, name: str) -> Any:
        return getattr(hub().rng, name)
