"""A run as JSON for programs."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from moonpool.bench.e2e.measure import Outcome
from moonpool.bench.e2e.options import Options
from moonpool.bench.e2e.record import Record
from moonpool.workload.selection import Selection

FORMAT = "moonpool-e2e/1"


@dataclass(frozen=True, slots=True)
class About:
    """What was run: for people who read a report later."""

    trace: str
    seed: int
    vocabulary: int
    made: str
    label: str = ""


def as_json(outcome: Outcome, options: Options, selection: Selection, about: About) -> Any:
    """Return everything as plain values."""
    return _finite(
        {
            "format": FORMAT,
            "made": about.made,
            "label": about.label,
            "ended": outcome.ended,
            "options": asdict(options),
            "workload": {
                "trace": about.trace,
                "seed": about.seed,
                "vocabulary": about.vocabulary,
                "requests": len(selection.items),
                "sessions": len({item.session for item in selection.items}),
                "left_out_too_long": selection.too_long,
                "prompt_tokens": sum(item.input_tokens for item in selection.items),
                "output_tokens": sum(item.output_tokens for item in selection.items),
                "block_tokens": selection.block_tokens,
                "engine_block_tokens": outcome.engine_block_tokens,
            },
            "figures": asdict(outcome.summary) | {"miss": _miss(outcome)},
            "hits": _hits(outcome),
            "engines": [_engine(url, outcome) for url in outcome.engines],
            "pools": [{"url": url, "counters": each} for url, each in outcome.pools.items()],
            "requests": [_request(each) for each in outcome.records],
        }
    )


def _engine(url: str, outcome: Outcome) -> dict[str, Any]:
    page = outcome.pages[url]
    return {
        "url": url,
        "block_tokens": page.block_tokens if page else None,
        "kv_blocks": page.kv_blocks if page else None,
        "counters": outcome.engines[url],
    }


def _hits(outcome: Outcome) -> dict[str, Any]:
    hits = outcome.hits
    return {
        "queries": hits.queries,
        "hbm": hits.hbm,
        "pool": hits.pool,
        "recomputed": hits.recomputed,
        "cached": hits.answered_cached,
        "ideal": hits.ideal,
        "hbm_rate": hits.rate(hits.hbm),
        "pool_rate": hits.rate(hits.pool),
        "recomputed_rate": hits.rate(hits.recomputed),
        "hit_rate": hits.hit_rate,
        "answers_hit_rate": hits.answers_rate,
        "ideal_rate": hits.ideal_rate,
    }


def _miss(outcome: Outcome) -> dict[str, Any] | None:
    miss = outcome.summary.miss
    return None if miss is None else asdict(miss) | {"miss_s": miss.miss_s}


def _request(record: Record) -> dict[str, Any]:
    answered = record.answered
    return {
        "number": record.number,
        "session": record.session,
        "turn": record.turn,
        "endpoint": record.endpoint,
        "intended_s": round(record.intended_s, 6),
        "sent_s": round(record.sent_s, 6),
        "prompt_tokens": record.prompt_tokens,
        "output_tokens": record.output_tokens,
        "cached_tokens": record.cached_tokens,
        "ideal_tokens": record.ideal_tokens,
        "ttft_s": round(record.ttft_s, 6) if answered else None,
        "tpot_s": None if not answered or record.tpot_s is None else round(record.tpot_s, 6),
        "e2e_s": round(record.e2e_s, 6) if answered else None,
        "error": record.error,
        "reason": record.reason,
    }


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
