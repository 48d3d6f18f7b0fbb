"""``moonpool bench router``: what a router adds, beside none and beside another, in one run."""

from __future__ import annotations

import asyncio
import itertools
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from moonpool.bench import router_stack as stack
from moonpool.bench.proc import cpu_s, private_bytes
from moonpool.bench.report import Row
from moonpool.bench.router_chats import Asking, Counter, Shape, requests
from moonpool.bench.router_load import Load, Taken
from moonpool.bench.router_stack import Target
from moonpool.bench.router_tokenizer import counter, make_tokenizer
from moonpool.errors import InvalidArgumentError

P50_MS, P99_MS = 3.0, 10.0
SECTIONS = ("chats", "start", "streams")
PEER_POLICIES = ("cache_aware", "round_robin")


@dataclass(frozen=True)
class Options:
    """One run. rate: requests a second. warm, counted: requests of a round before and in what is
    measured; rounds: how often all are measured in turn. streams: at a time; each gets
    ``stream_tokens`` tokens, one every ``interval_ms``. peer: vllm-router's executable."""

    sections: tuple[str, ...] = SECTIONS
    bars: bool = True
    rate: float = 100.0
    warm: int = 600
    counted: int = 1000
    rounds: int = 3
    engines: int = 4
    shape: Shape = field(default_factory=Shape)
    streams: int = 1000
    stream_tokens: int = 20
    interval_ms: float = 500.0
    peer: str = ""
    seed: int = 1


QUICK = Options(
    bars=False, warm=20, counted=30, rounds=1, engines=2, shape=Shape(chats=5, first_tokens=2048),
    streams=50, stream_tokens=4, interval_ms=50.0,
)  # fmt: skip


@dataclass(slots=True)
class Measured:
    """What came of all rounds of one target. first_ms: by round."""

    name: str
    first_ms: list[list[float]] = field(default_factory=list)
    whole_ms: list[float] = field(default_factory=list)
    answers: int = 0
    cpu_s: float = 0.0
    failures: dict[str, int] = field(default_factory=dict)
    memory: tuple[int, int] = (0, 0)

    def add(self, taken: Taken, cpu: float) -> None:
        """Take a round's."""
        self.first_ms.append([1000 * each for each in taken.first_s])
        self.whole_ms += [1000 * each for each in taken.whole_s]
        self.answers += len(taken.first_s)
        self.cpu_s += cpu
        for why, count in taken.failures.items():
            self.failures[why] = self.failures.get(why, 0) + count

    def percentiles(self, percent: float) -> list[float]:
        """Return a percentile of each round's first bytes, ms."""
        return [_ms(each, percent) for each in self.first_ms if each]

    @property
    def failed(self) -> int:
        """How many requests had no answer, or one with other bytes than the engine sent."""
        return sum(self.failures.values())


class Bench:
    """The processes, the load, and the rows that come of them."""

    def __init__(self, options: Options) -> None:
        if options.peer and not os.access(options.peer, os.X_OK):
            raise InvalidArgumentError(f"--vs: {options.peer!r} is no program that can be run")
        self.options = options
        self.router_core, self.load_core = stack.cores()
        self.failed = 0

    def rows(self, section: str) -> Iterator[Row]:
        """Yield the rows of a section."""
        with tempfile.TemporaryDirectory(prefix="moonpool-bench-") as place:
            folder = make_tokenizer(Path(place) / "model")
            stack.raise_priority(os.getpid())
            kept = os.sched_getaffinity(0)
            os.sched_setaffinity(0, {self.load_core})
            try:
                yield from getattr(self, f"_{section}")(folder)
            finally:
                os.sched_setaffinity(0, kept)

    def _chats(self, folder: Path) -> Iterator[Row]:
        """Growing chats that go on, with new ones among them."""
        options = self.options
        made = requests(options.shape, options.seed, counter(folder))
        warm = list(itertools.islice(made, options.warm))
        with self._targets(folder) as targets:
            found = {target.name: Measured(target.name) for target in targets}
            for target in targets:
                self._load(target, warm)
            for _ in range(options.rounds):
                asked = list(itertools.islice(made, options.counted))
                for target in targets:
                    self._measure(target, asked, found[target.name])
        what = f"{options.rate:g} requests/s of growing chats"
        yield from self._compared("chats", what, [*found.values()], bars=options.bars)

    def _start(self, folder: Path) -> Iterator[Row]:
        """Chats that no router has seen, all at once."""
        options = self.options
        shape = Shape(chats=10**6, first_tokens=options.shape.first_tokens, spread=False)
        for number in range(options.rounds):
            asked = _new_chats(shape, options.shape.chats, options.seed + number, counter(folder))
            with self._targets(folder) as targets:
                if number == 0:
                    found = {target.name: Measured(target.name) for target in targets}
                for target in targets:
                    self._measure(target, asked, found[target.name])
        what = f"{options.shape.chats} new chats in {options.shape.chats / options.rate:g} s"
        yield from self._compared("start", what, [*found.values()], bars=False)

    def _streams(self, folder: Path) -> Iterator[Row]:
        """Many answers that come slowly, at the same time."""
        options = self.options
        shape = Shape(
            chats=options.streams, first_tokens=1600, spread=False,
            answer_tokens=options.stream_tokens,
        )  # fmt: skip
        asked = _new_chats(shape, options.streams, options.seed, counter(folder))
        # All are open at a time: they begin in a third of the time that each takes.
        rate = 3 * options.streams / (options.stream_tokens * options.interval_ms / 1000)
        with self._targets(folder, options.interval_ms) as targets:
            found = {target.name: Measured(target.name) for target in targets}
            for target in targets:
                self._measure(target, asked, found[target.name], rate)
        what = f"{options.streams} streams at a time"
        yield from self._streamed(what, [*found.values()])

    @contextmanager
    def _targets(self, folder: Path, interval_ms: float = 0.0) -> Iterator[list[Target]]:
        options = self.options
        with ExitStack() as opened:
            enter = opened.enter_context
            running = stack.engines(options.engines, folder, self.load_core, interval_ms)
            ports = enter(running)
            targets = [Target("no router", ports[0])]
            targets.append(enter(stack.moonpool(ports, self.router_core)))
            targets += [
                enter(stack.peer(options.peer, ports, self.router_core, policy))
                for policy in (PEER_POLICIES if options.peer else ())
            ]
            yield targets

    def _measure(
        self, target: Target, asked: Sequence[Asking], found: Measured, rate: float = 0.0
    ) -> None:
        before = cpu_s([target.pid]) if target.pid else 0.0
        memory = private_bytes(target.pid) if target.pid else 0
        taken = self._load(target, asked, rate)
        if target.pid:
            found.memory = (memory, private_bytes(target.pid))
        found.add(taken, cpu_s([target.pid]) - before if target.pid else 0.0)
        self.failed += sum(taken.failures.values())

    def _load(self, target: Target, asked: Sequence[Asking], rate: float = 0.0) -> Taken:
        import uvloop

        # What the last target left behind must not be paid for by this one.
        time.sleep(0.3)
        load = Load("127.0.0.1", target.port)
        sending = load.run(asked, rate or self.options.rate, self.options.seed)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(sending)

    def _compared(
        self, section: str, what: str, found: list[Measured], *, bars: bool
    ) -> Iterator[Row]:
        none = found[0]
        for each in found:
            for percent, most in ((50, P50_MS), (99, P99_MS)):
                yield _time_row(section, what, each, none, percent, most if bars else None)
            if each is not none and section == "chats":
                yield _cpu_row(section, what, each)

    def _streamed(self, what: str, found: list[Measured]) -> Iterator[Row]:
        none = found[0]
        for each in found:
            done = len(each.whole_ms)
            row = Row("streams", f"{what}, {each.name}: all bytes right", float(done), "answers")
            yield row.beside(
                "asked for", float(done + each.failed), done / max(1, done + each.failed),
                bar="all", met=not each.failed, note=_why(each),
            )  # fmt: skip
            if not done:
                continue
            if each is none:
                yield Row("streams", f"{what}, {each.name}: p50", _ms(each.whole_ms, 50), "ms")
                continue
            added = _ms(each.whole_ms, 50) - _ms(none.whole_ms, 50)
            yield Row("streams", f"{what}, {each.name}: added to the whole answer", added, "ms")
            yield _cpu_row("streams", what, each)
            grown = (each.memory[1] - each.memory[0]) / 1e6
            yield Row("streams", f"{what}, {each.name}: memory gained", grown, "MB")


def _new_chats(shape: Shape, chats: int, seed: int, count: Counter) -> list[Asking]:
    """Return the first request of so many chats."""
    few = Shape(
        chats=1, first_tokens=shape.first_tokens, turns=1, spread=False,
        answer_tokens=shape.answer_tokens,
    )  # fmt: skip
    return list(itertools.islice(requests(few, seed + 1000, count), chats))


def _time_row(
    section: str, what: str, each: Measured, none: Measured, percent: int, most: float | None
) -> Row:
    """Return the median over rounds; what is added is taken round by round."""
    name = f"{what}, {each.name}: first byte p{percent}"
    taken, plain = each.percentiles(percent), none.percentiles(percent)
    if not taken:
        return Row(section, name, note=_why(each) or "no answer")
    value = float(np.median(taken))
    row = Row(section, name, value, "ms", min(taken), max(taken), note=_why(each))
    if each is none or len(taken) != len(plain):
        return row
    added = float(np.median([mine - its for mine, its in zip(taken, plain, strict=True)]))
    asked = most is not None and each.name.startswith("moonpool")
    base = float(np.median(plain))
    return row.beside(
        f"no router, + {added:.2f} ms", base, value / base,
        bar=f"+ < {most:g} ms" if asked else "",
        met=added < (most or 0.0) and not each.failed if asked else None, note=_why(each),
    )  # fmt: skip


def _cpu_row(section: str, what: str, each: Measured) -> Row:
    answers = max(1, each.answers)
    name = f"{what}, {each.name}: processor time a request"
    return Row(section, name, each.cpu_s / answers * 1000, "ms")


def _ms(values: Sequence[float], percent: float) -> float:
    return float(np.percentile(values, percent))


def _why(each: Measured) -> str:
    if not each.failures:
        return ""
    why, count = max(each.failures.items(), key=lambda pair: pair[1])
    return f"{each.failed} failed; {count} x {why}"
