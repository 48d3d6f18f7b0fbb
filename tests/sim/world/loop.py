"""An asyncio event loop in a thread of the simulation."""

from __future__ import annotations

import asyncio
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

from tests.sim.world.hub import Hub, Process, Thread
from tests.sim.world.network import End, Listener
from tests.sim.world.sockets import Early, Socket, net


class SimTask(asyncio.Task):  # type: ignore[type-arg]
    """A task with a hash that does not depend on where it lies in memory: sets of tasks are
    walked in the same order in every run."""

    def __init__(self, coroutine: Any, *, loop: Loop, name: str | None, context: Any) -> None:
        self._serial = loop.hub.number()
        super().__init__(coroutine, loop=loop, name=name, context=context)

    def __hash__(self) -> int:
        return self._serial

    def __eq__(self, other: object) -> bool:
        return self is other


_Base: Any = events.AbstractEventLoop


class Loop(_Base):  # type: ignore[misc]  # most of a loop is not used
    """What the product uses of a loop."""

    def __init__(self, hub: Hub, process: Process) -> None:
        self.hub = hub
        self.process_of = process
        self._ready: deque[events.Handle] = deque()
        self._thread: Thread | None = None
        self._idle = False
        self._closed = False

    # --- running ------------------------------------------------------------------------------

    def start(self, main: Coroutine[Any, Any, object], name: str) -> asyncio.Task[Any]:
        """Run a coroutine in a thread of its own."""
        task: asyncio.Task[Any] = self.create_task(main, name=name)
        self._thread = self.hub.spawn(self.process_of, self._run, name, self)
        task.add_done_callback(self._over)
        return task

    def _over(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and task.exception() is not None and self._thread is not None:
            self.hub.crashed(self._thread, task.exception())  # type: ignore[arg-type]

    def _run(self) -> None:
        ready = self._ready
        while True:
            while ready:
                handle = ready.popleft()
                if not handle._cancelled:
                    handle._run()
            self._idle = True
            self.hub.park()

    def _nudge(self) -> None:
        if self._idle and self._thread is not None:
            self._idle = False
            self.hub.wake(self._thread)

    def call_soon(self, callback: Any, *args: Any, context: Any = None) -> events.Handle:
        handle = events.Handle(callback, args, self, context)
        self._ready.append(handle)
        self._nudge()
        return handle

    call_soon_threadsafe = call_soon

    def time(self) -> float:
        return self.process_of.monotonic()

    def call_later(
        self, delay: float, callback: Any, *args: Any, context: Any = None
    ) -> events.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Any, *args: Any, context: Any = None
    ) -> events.TimerHandle:
        timer = events.TimerHandle(when, callback, args, self, context)
        true = self.hub.now + max(0.0, when - self.time()) / self.process_of.rate
        self.hub.at(true, self.process_of, self._due, timer)
        return timer

    def _due(self, timer: events.TimerHandle) -> None:
        if not timer._cancelled:
            self._ready.append(timer)
            self._nudge()

    def _timer_handle_cancelled(self, handle: events.TimerHandle) -> None:
        pass

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, *, name: str | None = None, context: Any = None) -> Any:
        return SimTask(coro, loop=self, name=name, context=context)

    def run_in_executor(self, _executor: Any, func: Callable[..., Any], *args: Any) -> Any:
        future = self.create_future()

        def settle(result: Any, error: BaseException | None) -> None:
            if not future.done():
                if error is None:
                    future.set_result(result)
                else:
                    future.set_exception(error)

        def work() -> None:
            try:
                result = func(*args)
            except Exception as error:  # noqa: BLE001 - the future's
                self.call_soon(settle, None, error)
            else:
                self.call_soon(settle, result, None)

        self.hub.spawn(self.process_of, work, "executor")
        return future

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return self._closed

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if self._thread is not None and not self.hub.ending:
            self.hub.crashed(self._thread, error or RuntimeError(context.get("message")))

    # --- the network --------------------------------------------------------------------------

    async def create_connection(
        self, factory: Callable[[], Any], host: str, port: int, **_options: Any
    ) -> tuple[Any, Any]:
        found = self.create_future()

        def done(end: End | None, why: str) -> None:
            if found.cancelled():
                if end is not None:
                    end.close()
            elif end is None:
                found.set_exception(ConnectionRefusedError(111, why))
            else:
                transport = Transport(self, end)
                found.set_result(transport)

        net().connect(self.process_of, (host, port), done)
        transport = await found
        protocol = factory()
        transport.begin(protocol)
        return transport, protocol

    async def create_server(self, factory: Callable[[], Any], *, sock: Socket) -> Any:
        listener = sock._listener
        assert listener is not None

        def taken(end: End) -> None:
            early, transport = end.reader, Transport(self, end)
            self.call_soon(lambda: transport.begin(factory()))
            if isinstance(early, Early):
                early.replay(transport)

        listener.taken = taken
        while sock.backlog:
            taken(sock.backlog.popleft())
        return _Server(listener)

    create_unix_server = create_server


class _Server:
    def __init__(self, listener: Listener) -> None:
        self._listener = listener

    def close(self) -> None:
        self._listener.close()


class Transport(asyncio.Transport):
    """A stream for asyncio protocols."""

    def __init__(self, loop: Loop, end: End) -> None:
        super().__init__()
        self._loop = loop
        self._end = end
        self._protocol: Any = None
        self._early: list[tuple[Any, ...]] = []
        self._closing = False
        end.reader = self

    def begin(self, protocol: Any) -> None:
        self._protocol = protocol
        protocol.connection_made(self)
        for call, *args in self._early:
            self._loop.call_soon(call, *args)
        self._early.clear()

    def arrived(self, data: bytes) -> None:
        self._told(self._data, data)

    def ended(self, error: str) -> None:
        self._told(self._eof, error)

    def _told(self, call: Any, what: Any) -> None:
        if self._protocol is None:
            self._early.append((call, what))
        else:
            self._loop.call_soon(call, what)

    def _data(self, data: bytes) -> None:
        if not self._closing:
            self._protocol.data_received(data)

    def _eof(self, error: str) -> None:
        if self._closing:
            return
        if error:
            self._lose(ConnectionResetError(104, error))
        elif not self._protocol.eof_received():
            self.close()

    def _lose(self, error: Exception | None) -> None:
        if not self._closing:
            self._closing = True
            self._end.close()
            self._loop.call_soon(self._protocol.connection_lost, error)

    def write(self, data: Any) -> None:
        if self._closing:
            return
        try:
            self._end.send(bytes(data))
        except OSError as error:
            self._lose(error)

    def writelines(self, parts: Any) -> None:
        self.write(b"".join(parts))

    def close(self) -> None:
        self._lose(None)

    def abort(self) -> None:
        self._lose(None)

    def is_closing(self) -> bool:
        return self._closing

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "peername":
            return self._end.peer.address
        if name == "socket":
            return Socket()
        return default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass
