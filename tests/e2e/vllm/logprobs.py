"""Comparing outputs. Tokens alone hide wrong KV: a random model often picks the same anyway."""

from __future__ import annotations

from typing import Any


def difference(one: dict[str, Any], other: dict[str, Any]) -> float:
    """Return the largest difference of two outputs' logprobs; infinite for other tokens."""
    if one["tokens"] != other["tokens"]:
        return float("inf")
    worst = 0.0
    for left, right in zip(one["logprobs"], other["logprobs"], strict=True):
        a, b = dict(left), dict(right)
        common = set(a) & set(b)
        if not common:
            return float("inf")
        worst = max([worst, *(abs(a[token] - b[token]) for token in common)])
    return worst
