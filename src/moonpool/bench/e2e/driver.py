"""Sends requests when they are to be sent, and notes what comes back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from itertools import count

import aiohttp
import xxhash

from moonpool.bench.e2e.options import BY_SESSION, OPEN, Options
from moonpool.bench.e2e.record import UNFINISHED, Record
from moonpool.bench.e2e.stream import Answer, AnswerError, body_of
from moonpool.workload.prompts import Prompts
from moonpool.workload.selection import Item, Selection

CONNECT_S = 30.0
ERROR_BYTES_MAX = 4096
MORE_TOKENS = 64
"""So many more than asked for are still counted, and then too many."""


class Driver:
    """One run. ``records`` grow as answers end; ``started`` and ``in_flight`` are for progress.

    A request that fails is counted, and its conversation goes on: prompts do not depend on answers.
    """

    def __init__(
        self,
        options: Options,
        prompts: Prompts,
        done: Callable[[Record], None] = lambda record: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.records: list[Record] = []
        self.in_flight = 0
        self._options, self._prompts, self._done = options, prompts, done
        self._clock = clock
        self._began = clock()
        self._numbers = count()
        self._homes: dict[str, int] = {}
        self._http: aiohttp.ClientSession | None = None

    async def run(self, selection: Selection) -> bool:
        """Send all of it; return whether it came to its end before ``limit_s``. What is under way
        when this is cancelled is noted as unfinished."""
        options = self._options
        self._began = self._clock()
        work = self._open(selection) if options.mode == OPEN else self._closed(selection)
        timeout = aiohttp.ClientTimeout(total=options.request_timeout_s, connect=CONNECT_S)
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(timeout=timeout, connector=connector) as self._http:
            try:
                async with asyncio.timeout(options.limit_s or None):
                    await work
            except TimeoutError:
                return False
        return True

    def now(self) -> float:
        """Return the seconds since the run began."""
        return self._clock() - self._began

    # --- closed loop --------------------------------------------------------------------------

    async def _closed(self, selection: Selection) -> None:
        sessions = enumerate(selection.sessions())
        workers = min(self._options.concurrency, len(selection.items))
        async with asyncio.TaskGroup() as group:
            for _ in range(workers):
                group.create_task(self._work(sessions))

    async def _work(self, sessions: Iterator[tuple[int, list[Item]]]) -> None:
        for place, items in sessions:
            # Those that wait for a place begin when there is one.
            due_s = place * self._options.spacing_s if place < self._options.concurrency else 0.0
            due_s = max(due_s, self.now())
            for item in items:
                due_s += self._pause_s(item)
                body = self._body(item)
                await self._sleep_until(due_s)
                record = await self._ask(item, body, due_s)
                due_s = record.ended_s

    def _pause_s(self, item: Item) -> float:
        return min(item.think_s * self._options.think_scale, self._options.think_max_s)

    # --- open loop ----------------------------------------------------------------------------

    async def _open(self, selection: Selection) -> None:
        places = asyncio.Semaphore(self._options.concurrency)
        first_s = selection.items[0].time_s
        async with asyncio.TaskGroup() as group:
            for item in selection.items:
                due_s = (item.time_s - first_s) / self._options.speed
                body = self._body(item)
                await self._sleep_until(due_s)
                # With no place left it is sent late; its latency counts from when it was due.
                await places.acquire()
                group.create_task(self._in_place(places, item, body, due_s))

    async def _in_place(
        self, places: asyncio.Semaphore, item: Item, body: bytes, due_s: float
    ) -> None:
        try:
            await self._ask(item, body, due_s)
        finally:
            places.release()

    # --- one request --------------------------------------------------------------------------

    async def _sleep_until(self, due_s: float) -> None:
        wait_s = due_s - self.now()
        if wait_s > 0:
            await asyncio.sleep(wait_s)

    def _body(self, item: Item) -> bytes:
        prompt = self._prompts.prompt(item)
        return body_of(self._options.model, prompt, item.output_tokens, plain=self._options.plain)

    def _endpoint(self, number: int, session: str) -> int:
        if self._options.balance == BY_SESSION:
            number = self._homes.setdefault(session, len(self._homes))
        return number % len(self._options.endpoints)

    async def _ask(self, item: Item, body: bytes, due_s: float) -> Record:
        number = next(self._numbers)
        record = Record(
            number, item.session, item.turn, item.input_tokens, item.output_tokens, due_s
        )
        record.endpoint = self._endpoint(number, item.session)
        record.sent_s = self.now()
        self.in_flight += 1
        try:
            await self._exchange(record, body)
        except AnswerError as error:
            record.error, record.reason = error.kind, str(error)
        except asyncio.CancelledError:
            record.error = UNFINISHED
            raise
        finally:
            self.in_flight -= 1
            record.ended_s = self.now()
            self.records.append(record)
            self._done(record)
        return record

    async def _exchange(self, record: Record, body: bytes) -> None:
        assert self._http is not None, "within run"
        answer = Answer(self.now, MORE_TOKENS + record.wanted_tokens)
        url = f"{self._options.endpoints[record.endpoint]}/v1/completions"
        # A trace's own name may hold what no header may.
        session = xxhash.xxh3_64_hexdigest(record.session.encode())
        headers = {"Content-Type": "application/json", "X-Session-ID": session}
        try:
            async with self._http.post(url, data=body, headers=headers) as response:
                if response.status != 200:
                    text = await response.content.read(ERROR_BYTES_MAX)
                    raise AnswerError(f"http {response.status}", text.decode(errors="replace"))
                async for line in response.content:
                    answer.feed(line)
        except TimeoutError:
            raise AnswerError("timeout", "no whole answer in time") from None
        except aiohttp.ClientConnectorError as error:
            raise AnswerError("connect", str(error)) from None
        except (aiohttp.ClientError, OSError) as error:
            raise AnswerError("broken", f"{type(error).__name__}: {error}") from None
        except ValueError as error:
            # A line longer than any event.
            raise AnswerError("garbage", str(error)) from None
        finally:
            record.token_s = answer.token_s
            record.output_tokens = answer.output_tokens
            record.cached_tokens = answer.cached_tokens
        answer.check(record.prompt_tokens, record.wanted_tokens, plain=self._options.plain)
