"""Starts processes of the stack again that end by themselves: a pool outlives its processes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from moonpool.demo.endurance import Endurance
from moonpool.demo.process import Child, StartError

WATCH_S = 0.5


@dataclass(eq=False)
class Kept:
    """A process that is kept running. ``lost`` is told when it has ended, ``ready`` waits until it
    serves; both again and again. essential: without it nothing goes on."""

    child: Child
    lost: Callable[[], None]
    ready: Callable[[], Awaitable[object]]
    essential: bool
    endurance: Endurance = field(default_factory=Endurance)
    starting: asyncio.Task[None] | None = None


class Keeper:
    """Watches processes and starts them again, each at its own pace; says so in one line each."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._kept: list[Kept] = []

    def keep(self, kept: Kept) -> None:
        """Start this process again whenever it ends by itself, from now on."""
        self._kept.append(kept)

    async def run(self) -> None:
        """Watch until cancelled. Raises StartError where an essential process, or the last of the
        others, ended so often that it is given up."""
        try:
            while True:
                for each in list(self._kept):
                    self._look_after(each)
                await asyncio.sleep(WATCH_S)
        finally:
            tasks = [each.starting for each in self._kept if each.starting is not None]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _look_after(self, kept: Kept) -> None:
        task = kept.starting
        if task is not None and task.done():
            kept.starting = None
            if task.exception() is not None:
                self._give_up(kept, task.exception())
        elif task is None and not kept.child.is_alive():
            kept.lost()
            error = kept.child.ended_badly()
            wait_s = kept.endurance.ended(time.monotonic())
            if wait_s is None:
                self._give_up(kept, error)
            else:
                self._say(f"{error}\n{kept.child.name} is started again")
                kept.starting = asyncio.create_task(self._start_again(kept, wait_s))

    async def _start_again(self, kept: Kept, wait_s: float) -> None:
        while True:
            # What is left of it first, beside the event loop: that may take a moment.
            await asyncio.to_thread(kept.child.kill)
            await asyncio.sleep(wait_s)
            kept.child.start()
            try:
                await kept.ready()
            except StartError as error:
                next_s = kept.endurance.ended(time.monotonic())
                if next_s is None:
                    raise
                self._say(f"{error}\n{kept.child.name} is started again")
                wait_s = next_s
            else:
                self._say(f"{kept.child.name} is back")
                return

    def _give_up(self, kept: Kept, error: BaseException | None) -> None:
        assert error is not None
        self._kept.remove(kept)
        if kept.essential or all(each.essential for each in self._kept):
            raise error
        self._say(f"{error}\n{kept.child.name} is lost; the others go on")
