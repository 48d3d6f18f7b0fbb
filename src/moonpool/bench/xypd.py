"""Several splits into prefilling and decoding engines in turn, under the same conversations."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from moonpool.bench.xypd_figures import Figures, figures
from moonpool.bench.xypd_fleet import Fleet
from moonpool.demo.compare import Comparison, compare
from moonpool.demo.process import StartError
from moonpool.demo.workload import Workload
from moonpool.errors import ConfigError
from moonpool.workload.replay import Answer, ReplayOptions, Run, replay
from moonpool.workload.session import Session, Turn

CONFIGS = ("1P1D", "2P1D", "2P2D", "2P4D", "4P4D")
ENGINES_MAX = 64
WARM_UP_TOKENS = 300
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Split:
    """So many engines that only prefill and only decode; ``both``: that do all of it."""

    prefill: int = 0
    decode: int = 0
    both: int = 0

    def __str__(self) -> str:
        return str(self.both) if self.both else f"{self.prefill}P{self.decode}D"


def splits(text: str) -> tuple[Split, ...]:
    """Return what ``1P1D,2P4D,3`` means; raise ConfigError."""
    found = tuple(_split(part.strip()) for part in text.split(",") if part.strip())
    if not found or len(set(found)) < len(found):
        raise ConfigError(f"configs: {text!r} is not allowed; allowed: different ones, such as "
                          "1P1D,2P4D")  # fmt: skip
    return found


def _split(text: str) -> Split:
    match = re.fullmatch(r"(?:(\d{1,3})[pP](\d{1,3})[dD]|(\d{1,3}))", text)
    numbers = [int(number) for number in match.groups() if number] if match else []
    if not numbers or min(numbers) < 1 or sum(numbers) > ENGINES_MAX:
        raise ConfigError(
            f"configs: {text!r} is not allowed; allowed: 1P1D and so on, or a number of engines "
            f"that do both; {ENGINES_MAX} engines at most"
        )
    return Split(*numbers) if len(numbers) == 2 else Split(both=numbers[0])


@dataclass(frozen=True, slots=True)
class Case:
    """What is measured in one go."""

    split: Split
    policy: str

    def label(self, policies: Sequence[str]) -> str:
        """Return its name among others; the policy is said where there are several."""
        return f"{self.split} {self.policy}" if len(policies) > 1 else str(self.split)


@dataclass(frozen=True, slots=True)
class Outcome:
    """One case: its figures, its answers, and how they compare with those of the first."""

    label: str
    split: str
    policy: str
    figures: Figures
    answers: tuple[Answer, ...]
    comparison: Comparison


@dataclass(frozen=True, slots=True)
class XypdOptions:
    """What to run. ``model``: the name under which engines serve it; ``vocabulary``: prompt tokens
    are drawn from below it."""

    splits: tuple[Split, ...]
    policies: tuple[str, ...]
    model: str
    vocabulary: int
    block_tokens: int
    run: str

    def cases(self) -> Iterator[Case]:
        """Yield all cases in turn."""
        for split in self.splits:
            for policy in self.policies:
                yield Case(split, policy)


async def run_xypd(
    options: XypdOptions,
    workload: Workload,
    fleet: Fleet,
    say: Say,
    done: Callable[[Outcome], None] = lambda outcome: None,
) -> list[Outcome]:
    """Measure every case; done: told each outcome as it comes."""
    first: Run | None = None
    outcomes = []
    for number, case in enumerate(options.cases()):
        label = case.label(options.policies)
        say(f"{label}: starting")
        # Caches of the case before do not help this one: its prompts have another salt.
        salt = f"xypd-{options.run}-{number}"
        async with fleet.serving(case.split, case.policy) as url:
            await _warm_up(options, fleet, salt, min(WARM_UP_TOKENS, workload.context_tokens - 2))
            say(f"{label}: {workload.requests} requests")
            run = await _replay(options, workload, url, salt, first)
        fleet.check()
        first = first or run
        outcome = Outcome(
            label, str(case.split), case.policy, figures(run), run.answers, compare(run, first)
        )
        outcomes.append(outcome)
        done(outcome)
    return outcomes


async def _replay(
    options: XypdOptions, workload: Workload, url: str, salt: str, first: Run | None
) -> Run:
    forced = {answer.key: answer.tokens for answer in first.answers} if first else None
    replayed = _options(options, workload, salt)
    return await replay(url, workload.sessions, replayed, forced=forced)


def _options(options: XypdOptions, workload: Workload, salt: str) -> ReplayOptions:
    return ReplayOptions(
        model=options.model,
        vocabulary=options.vocabulary,
        block_tokens=options.block_tokens,
        concurrency=len(workload.sessions),
        start_spacing_s=workload.start_spacing_s,
        cache_salt=salt,
    )


async def _warm_up(options: XypdOptions, fleet: Fleet, salt: str, tokens: int) -> None:
    """Let every engine answer once, so that what happens only once is not measured."""
    session = Session("warm-up", "warm-up", 1, (Turn(tokens, 2),))
    plain = ReplayOptions(
        options.model, options.vocabulary, options.block_tokens, cache_salt=f"{salt}-warm-up"
    )
    for url in fleet.urls:
        run = await replay(url, [session], plain)
        for answer in run.answers:
            if answer.error:
                raise StartError(f"{url} does not answer: {answer.error}")
