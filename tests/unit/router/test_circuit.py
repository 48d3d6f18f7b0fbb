"""When a failed instance is asked again."""

from __future__ import annotations

from moonpool.router.circuit import COOLDOWN_MAX_S, Circuit


def test_pauses_grow_and_are_bounded() -> None:
    circuit = Circuit()
    pauses = []
    for _ in range(20):
        circuit.failure(0.0)
        pauses.append(circuit.open_until_s)
    assert pauses[:3] == [0.5, 1.0, 2.0]
    assert max(pauses) == COOLDOWN_MAX_S


def test_after_the_pause_one_trial_goes_through() -> None:
    circuit = Circuit()
    circuit.failure(0.0)
    assert not circuit.allows(0.4)
    assert circuit.describe(0.4) == "open"
    assert circuit.allows(0.6)
    assert circuit.describe(0.6) == "half-open"
    circuit.begin(0.6)
    assert not circuit.allows(0.7)
    # Nothing was heard of the trial: another may go.
    assert circuit.allows(1.2)


def test_an_answer_closes_it_and_forgets_the_failures() -> None:
    circuit = Circuit()
    circuit.failure(0.0)
    circuit.failure(0.0)
    circuit.success()
    assert circuit.allows(0.0)
    assert circuit.describe(0.0) == "closed"
    circuit.begin(0.0)
    assert circuit.allows(0.0)
    circuit.failure(0.0)
    assert circuit.open_until_s == 0.5
