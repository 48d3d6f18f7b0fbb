"""A run as a command asks for it: the trace read, the endpoints asked, progress shown."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import aiohttp
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
)

from moonpool.bench.e2e import sent
from moonpool.bench.e2e.discover import Served, engines_behind, served
from moonpool.bench.e2e.driver import Driver
from moonpool.bench.e2e.measure import Outcome, Sources, measure
from moonpool.bench.e2e.options import Options, base_url
from moonpool.bench.e2e.record import Record
from moonpool.bench.e2e.report import About, as_json
from moonpool.errors import ConfigError
from moonpool.trace_line import Line
from moonpool.workload.prompts import VOCABULARY_MIN, Prompts
from moonpool.workload.selection import Cut, Selection, select
from moonpool.workload.tokenizer import encoder_of
from moonpool.workload.traces import FORMATS, Problems, read_trace

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Job:
    """What the command was told; see Options and Cut."""

    endpoints: tuple[str, ...]
    trace: Path
    cut: Cut
    mode: str
    concurrency: int
    balance: str
    think_scale: float
    think_max_s: float
    speed: float
    trace_format: str
    trace_block: int
    tokenizer: Path | None
    model: str
    vocabulary: int
    seed: int
    warm_up: int
    request_timeout_s: float
    limit_s: float
    plain: bool
    metrics: tuple[str, ...]
    pools: tuple[str, ...]
    label: str

    def options(self) -> Options:
        """Return how to send, but for the model's name; raise ConfigError."""
        if self.trace_format and self.trace_format not in FORMATS:
            allowed = ", ".join(FORMATS)
            raise ConfigError(f"format: {self.trace_format!r} is not known; allowed: {allowed}")
        if self.vocabulary and self.vocabulary < VOCABULARY_MIN:
            raise ConfigError(f"vocabulary: {self.vocabulary} is not allowed; allowed: 2 or more")
        return Options(
            endpoints=tuple(base_url(each) for each in self.endpoints),
            model=self.model,
            mode=self.mode,
            balance=self.balance,
            concurrency=self.concurrency,
            think_scale=self.think_scale,
            think_max_s=self.think_max_s,
            spacing_s=self.cut.spacing_s,
            speed=self.speed,
            request_timeout_s=self.request_timeout_s,
            limit_s=self.limit_s,
            plain=self.plain,
        ).checked()


async def run(job: Job, say: Say) -> tuple[Any, list[Line]]:
    """Return a run's JSON and what was sent; raise ConfigError."""
    options = job.options()
    engines = [base_url(each, "metrics") for each in job.metrics]
    pools = [base_url(each, "pool") for each in job.pools]
    async with aiohttp.ClientSession() as http:
        models = [await served(http, url, job.model) for url in options.endpoints]
        engines = engines or await engines_behind(http, options.endpoints)
    model = _one(models)
    options = replace(options, model=model.model)
    selection = _selection(job, model, say)
    prompts = Prompts(job.vocabulary or model.vocabulary, job.seed)
    outcome = await _shown(job, options, selection, prompts, Sources(engines, pools))
    made = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    vocabulary = job.vocabulary or model.vocabulary
    about = About(job.trace.name, job.seed, vocabulary, made, job.label)
    found = as_json(outcome, options, selection, about)
    return found, list(sent.lines_of(outcome.records, selection))


def _one(models: list[Served]) -> Served:
    names = dict.fromkeys(each.model for each in models)
    if len(names) > 1:
        raise ConfigError(f"endpoint: they serve different models: {', '.join(names)}")
    contexts = [each.context_tokens for each in models if each.context_tokens]
    vocabulary = min(each.vocabulary for each in models)
    return Served(models[0].model, min(contexts, default=0), vocabulary)


def _selection(job: Job, model: Served, say: Say) -> Selection:
    problems = Problems(strict=False)
    encode = None if job.tokenizer is None else encoder_of(job.tokenizer)
    groups = read_trace(
        job.trace,
        problems,
        form=job.trace_format,
        block_tokens=job.trace_block,
        encode=encode,
    )
    limits = [each for each in (job.cut.context_tokens, model.context_tokens) if each]
    selection = select(groups, replace(job.cut, context_tokens=min(limits, default=0)))
    for each in problems.shown:
        say(each)
    if problems.count:
        say(f"{problems.count} bad lines were left out")
    if selection.too_long:
        say(f"{selection.too_long} requests longer than {min(limits)} tokens are left out")
    return selection


async def _shown(
    job: Job, options: Options, selection: Selection, prompts: Prompts, sources: Sources
) -> Outcome:
    """Measure with a progress bar on stderr."""
    drivers: list[Driver] = []
    failed = 0
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[flying]} in flight, {task.fields[failed]} failed"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:
        bar = progress.add_task("warming up", total=len(selection.items), flying=0, failed=0)

        def watch(driver: Driver) -> None:
            drivers.append(driver)
            progress.update(bar, description="sending")

        def done(record: Record) -> None:
            nonlocal failed
            failed += bool(record.error)
            progress.update(bar, advance=1, flying=drivers[0].in_flight, failed=failed)

        return await measure(
            options, selection, prompts, sources, warm_up=job.warm_up, watch=watch, done=done
        )
