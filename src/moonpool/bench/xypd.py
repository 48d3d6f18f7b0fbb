"""Several splits into prefilling and decoding engines in turn, under the same conversations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from moonpool.bench.xypd_figures import Figures, figures
from moonpool.bench.xypd_fleet import Fleet
from moonpool.bench.xypd_split import Split
from moonpool.demo.compare import Comparison, compare
from moonpool.demo.process import StartError
from moonpool.demo.workload import Workload
from moonpool.workload.replay import Answer, ReplayOptions, Run, replay
from moonpool.workload.session import Session, Turn

CONFIGS = ("1P1D", "2P1D", "2P2D", "2P4D", "4P4D")
WARM_UP_TOKENS = 300
Say = Callable[[str], None]


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
