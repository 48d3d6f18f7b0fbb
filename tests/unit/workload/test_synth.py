"""Synthesised conversations have the moments that they were asked for."""

from __future__ import annotations

import statistics

import pytest

from moonpool.workload.ideal import IdealCache
from moonpool.workload.session import PromptBuilder, Session, tokens_of
from moonpool.workload.synth import CODEX, shortened, synthesise

CONVERSATIONS = 200


def _ideal_hit_rate(sessions: list[Session]) -> float:
    """Replay without an engine: answers are made-up tokens of the right length."""
    cache = IdealCache(32)
    histories: dict[str, list[int]] = {}
    hits = total = 0
    for index in range(len(sessions[0].turns)):
        for session in sessions:
            prompt = PromptBuilder(session, 256).prompt(index, histories.get(session.name, []))
            hits += cache.could_hit(prompt)
            total += len(prompt)
            answer = tokens_of(
                f"answer {session.name}/{index}", session.turns[index].output_tokens, 256
            )
            histories[session.name] = prompt + list(answer)
            cache.add(histories[session.name])
    return hits / total


def test_moments_of_the_codex_trace() -> None:
    sessions = synthesise(CODEX, CONVERSATIONS, seed=1)
    assert {len(session.turns) for session in sessions} == {33}
    firsts = [session.turns[0].input_tokens for session in sessions]
    lasts = [session.turns[-1].input_tokens for session in sessions]
    assert statistics.mean(firsts) == pytest.approx(12_000, rel=0.1)
    assert statistics.mean(lasts) == pytest.approx(12_000 + 32 * 2_242, rel=0.05)
    input_tokens = sum(session.input_tokens for session in sessions)
    output_tokens = sum(session.output_tokens for session in sessions)
    assert input_tokens / output_tokens == pytest.approx(131, rel=0.05)
    gaps = sorted(turn.gap_s for session in sessions for turn in session.turns[1:])
    assert gaps[len(gaps) // 2] == pytest.approx(5.2, rel=0.1)
    assert gaps[int(0.99 * len(gaps))] == pytest.approx(81.4, rel=0.25)


def test_ideal_hit_rate_is_that_of_the_codex_trace() -> None:
    # 94.2 % is published; a few conversations suffice, since most reuse is within each.
    assert _ideal_hit_rate(synthesise(CODEX, 4, seed=1)) == pytest.approx(0.942, abs=0.015)


def test_shortened_keeps_proportions() -> None:
    profile = shortened(CODEX, 0.2, turns=9)
    assert profile.first_tokens == 2_400
    assert profile.growth_tokens == 448
    assert profile.turns == 9
    assert profile.gap_p50_s == CODEX.gap_p50_s
    mean_input = profile.first_tokens + 4 * profile.growth_tokens
    assert mean_input / profile.output_tokens == pytest.approx(131, rel=0.02)


def test_the_same_seed_gives_the_same_conversations() -> None:
    def shape(seed: int) -> list[tuple[int, int, float]]:
        sessions = synthesise(shortened(CODEX, 0.1, 5), 3, seed)
        return [(t.input_tokens, t.output_tokens, t.gap_s) for s in sessions for t in s.turns]

    assert shape(7) == shape(7)
    assert shape(7) != shape(8)


def test_prompts_grow_by_the_answer_and_fresh_tokens() -> None:
    (session,) = synthesise(shortened(CODEX, 0.05, 4), 1, seed=3)
    builder = PromptBuilder(session, 256)
    history: list[int] = []
    for index, turn in enumerate(session.turns):
        prompt = builder.prompt(index, history)
        assert prompt[: len(history)] == history
        assert len(prompt) == turn.input_tokens
        history = [*prompt, *range(turn.output_tokens)]


def test_conversations_share_their_system_prompt_and_nothing_else() -> None:
    one, two = synthesise(shortened(CODEX, 0.1, 2), 2, seed=0)
    first, second = PromptBuilder(one, 256).prompt(0, []), PromptBuilder(two, 256).prompt(0, [])
    shared = one.shared_tokens
    assert shared > 100
    assert first[:shared] == second[:shared]
    assert first[shared : shared + 32] != second[shared : shared + 32]
