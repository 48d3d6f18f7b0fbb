"""Looking into the product while it runs: evictions, epochs, pauses in the middle of copies."""

from __future__ import annotations

import contextlib
import logging
import traceback
from collections.abc import Callable, Iterator
from typing import Any

from moonpool.core import removal, room, shelving
from moonpool.master.service import Service
from moonpool.master.terms import Lead, Term
from moonpool.transport import native, small
from moonpool.transport.owners import Owners
from tests.sim.world.history import Violation
from tests.sim.world.hub import hub

__all__ = ["Watching", "check", "pause"]


def pause() -> None:
    """Let others run in the middle of a copy, perhaps for long."""
    running = hub()
    thread = running.thread
    if thread is None or thread.loop is not None or running.ending:
        return
    rng = running.rng
    if rng.random() >= running.pause:
        return
    kind = rng.random()
    seconds = rng.random() * (0.002 if kind < 0.7 else 0.4 if kind < 0.9 else 6.0)
    thread.process.stalled += seconds
    if seconds > 0.05:
        running.paused_until = max(running.paused_until, running.now + seconds)
    running.park(seconds)


class Watching:
    """Hooks for one simulation. ``findings`` are what the pool must not do."""

    def __init__(self, on_evicted: Callable[[bytes], None]) -> None:
        self.findings: list[str] = []
        self.epochs: dict[int, str] = {}
        self.newest = 0
        self.begun: list[float] = []
        """When an epoch was first acted in."""
        self._on_evicted = on_evicted

    def _found(self, what: str) -> None:
        self.findings.append(what)
        hub().stopped = True

    @contextlib.contextmanager
    def hooked(self) -> Iterator[None]:
        """Watch inside the block."""
        with contextlib.ExitStack() as stack:
            for module in (room, shelving):
                self._hook(stack, module, "evict", self._evict)
            self._hook(stack, removal, "_remove", self._remove)
            self._hook(stack, Service, "answer", self._answer)
            self._hook(stack, Term, "acts", self._term)
            self._hook(stack, Service, "__init__", _noted("service"))
            self._hook(stack, Lead, "__init__", _noted("lead"))
            for name in ("_begin", "_seal", "_owned"):
                self._hook(stack, small, name, _paused)
            self._hook(stack, native, "memmove", _halved)
            for name in ("fill", "equal"):
                self._hook(stack, Owners, name, _paused)
            log = logging.getLogger("moonpool")
            handler = _Errors(self._found)
            before = log.level, log.propagate
            log.addHandler(handler)
            log.setLevel(logging.ERROR)
            log.propagate = False
            try:
                yield
            finally:
                log.removeHandler(handler)
                log.setLevel(before[0])
                log.propagate = before[1]

    @staticmethod
    def _hook(
        stack: contextlib.ExitStack,
        holder: Any,
        name: str,
        around: Callable[[Callable[..., Any]], Callable[..., Any]],
    ) -> None:
        inner = getattr(holder, name)
        setattr(holder, name, around(inner))
        stack.callback(setattr, holder, name, inner)

    def _evict(self, inner: Callable[..., Any]) -> Callable[..., Any]:
        def evict(state: Any, evicted: Any) -> Any:
            if evicted.key not in state.disks.objects:
                self._on_evicted(evicted.key)
            return inner(state, evicted)

        return evict

    def _remove(self, inner: Callable[..., Any]) -> Callable[..., Any]:
        def remove(state: Any, key: bytes, *, force: bool) -> Any:
            code = inner(state, key, force=force)
            if code == 0:
                self._on_evicted(key)
            return code

        return remove

    def _answer(self, inner: Callable[..., Any]) -> Callable[..., Any]:
        def answer(service: Service, session: Any, request: Any) -> Any:
            if not isinstance(service, Term):
                self._acts(service.epoch)
            return inner(service, session, request)

        return answer

    def _term(self, inner: Callable[[Term], bool]) -> Callable[[Term], bool]:
        def acts(term: Term) -> bool:
            may = inner(term)
            if may:
                self._acts(term.epoch)
            return may

        return acts

    def _acts(self, epoch: int) -> None:
        """A master acts in an epoch at this moment."""
        process = hub().process
        assert process is not None
        who = self.epochs.setdefault(epoch, process.name)
        if who != process.name:
            self._found(f"{who} and {process.name} act in epoch {epoch}")
        if epoch < self.newest:
            self._found(f"{process.name} acts in epoch {epoch}, {self.newest} has begun")
        elif epoch > self.newest:
            self.newest = epoch
            self.begun.append(hub().now)


def _noted(part: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Let the simulation find a master's part."""

    def around(inner: Callable[..., Any]) -> Callable[..., Any]:
        def init(made: Any, *args: Any, **options: Any) -> None:
            inner(made, *args, **options)
            process = hub().process
            if process is not None and not isinstance(made, Term):
                process.parts[part] = made

        return init

    return around


def _paused(inner: Callable[..., Any]) -> Callable[..., Any]:
    def paused(*args: Any) -> Any:
        pause()
        result = inner(*args)
        pause()
        return result

    return paused


def _halved(inner: Callable[[int, int, int], Any]) -> Callable[[int, int, int], Any]:
    def memmove(target: int, source: int, nbytes: int) -> Any:
        half = nbytes // 2
        inner(target, source, half)
        pause()
        return inner(target + half, source + half, nbytes - half)

    return memmove


class _Errors(logging.Handler):
    def __init__(self, found: Callable[[str], None]) -> None:
        super().__init__(logging.ERROR)
        self._found = found

    def emit(self, record: logging.LogRecord) -> None:
        if not hub().ending:
            text = record.getMessage()
            if record.exc_info and record.exc_info[1] is not None:
                text += ": " + "".join(traceback.format_exception(record.exc_info[1])[-8:])
            self._found(text)


def check(findings: list[str]) -> None:
    """Raise the first finding."""
    if findings:
        raise Violation(findings[0])
