"""A run as JSON for programs and as rows for people."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from moonpool.bench.e2e.measure import Outcome
from moonpool.bench.e2e.options import Options
from moonpool.bench.e2e.record import Record
from moonpool.bench.e2e.summary import Spread
from moonpool.workload.selection import Selection

FORMAT = "moonpool-e2e/1"
TIMES = (("ttft_s", "TTFT"), ("itl_s", "ITL"), ("tpot_s", "TPOT"), ("e2e_s", "end to end"))
SHOWN = ("mean", "p50", "p90", "p95", "p99", "max")

Row = tuple[str, str]


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
            "engines": [{"url": url, "counters": each} for url, each in outcome.engines.items()],
            "pools": [{"url": url, "counters": each} for url, each in outcome.pools.items()],
            "requests": [_request(each) for each in outcome.records],
        }
    )


def _hits(outcome: Outcome) -> dict[str, Any]:
    hits = outcome.hits
    return {
        "queries": hits.queries,
        "hbm": hits.hbm,
        "pool": hits.pool,
        "recomputed": hits.recomputed,
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


# --- rows, made from the JSON, so that an old file shows as a new run does -------------------------


def seconds(value: float | None) -> str:
    """Return a time for people."""
    if value is None:
        return "-"
    return f"{value:.3f} s" if value >= 1 else f"{1000 * value:.1f} ms"


def percent(value: float | None) -> str:
    """Return a share for people."""
    return "unknown" if value is None else f"{100 * value:.1f} %"


def amount(value: float | None) -> str:
    """Return a number of tokens for people."""
    return "unknown" if value is None else f"{value:,.0f}"


def time_rows(found: Any) -> list[list[str]]:
    """Return a row for each kind of time."""
    figures = found["figures"]
    rows = [*TIMES, ("late_s", "sent late")]
    return [[shown, *(seconds(figures[name][key]) for key in SHOWN)] for name, shown in rows]


def facts(found: Any) -> list[Row]:
    """Return what is counted, as names and values."""
    figures, work = found["figures"], found["workload"]
    failures = ", ".join(f"{count} {kind}" for kind, count in figures["failures"].items())
    rows = [
        ("requests answered", f"{figures['answered']:,} of {work['requests']:,}"),
        ("failed", failures or "none"),
        ("unfinished when the run ended", f"{figures['unfinished']:,}"),
        ("left out, longer than the context", f"{work['left_out_too_long']:,}"),
        ("time", f"{figures['wall_s']:.1f} s"),
        ("requests a second", f"{figures['requests_per_s']:.2f}"),
        ("prompt tokens a second", f"{figures['prompt_tokens_per_s']:,.0f}"),
        ("output tokens a second", f"{figures['output_tokens_per_s']:,.1f}"),
    ]
    return rows + miss_rows(figures["miss"])


def hit_rows(found: Any) -> list[list[str]]:
    """Return tokens and shares by source."""
    hits = found["hits"]
    rows = [
        ["engines' own cache (HBM)", amount(hits["hbm"]), percent(hits["hbm_rate"])],
        ["pool", amount(hits["pool"]), percent(hits["pool_rate"])],
        ["recomputed", amount(hits["recomputed"]), percent(hits["recomputed_rate"])],
        ["hit, of all looked up", amount(hits["queries"]), percent(hits["hit_rate"])],
        ["hit, by the answers", "", percent(hits["answers_hit_rate"])],
        ["ideal: one cache that forgets nothing", amount(hits["ideal"]),
         percent(hits["ideal_rate"])],
    ]  # fmt: skip
    return rows


def miss_rows(miss: Any) -> list[Row]:
    """Return what a miss costs."""
    if miss is None:
        return [("a miss costs", "unknown")]
    return [
        (
            "a miss costs",
            f"{1e6 * miss['miss_s']:.1f} µs a token (computed {1e6 * miss['computed_s']:.1f}, "
            f"cached {1e6 * miss['cached_s']:.1f}; explains {100 * miss['fitted']:.0f} %)",
        ),
        ("lost to avoidable misses", f"{miss['lost_s']:.1f} s of TTFT in all"),
    ]


def pool_rows(found: Any) -> list[Row]:
    """Return what pool and connectors counted and is not zero."""
    total: dict[str, float] = {}
    for each in (*found["pools"], *found["engines"]):
        for name, value in (each["counters"] or {}).items():
            if "moonpool_" in name:
                total[name] = total.get(name, 0.0) + value
    return [(name, f"{value:,.0f}") for name, value in sorted(total.items()) if value]


def heading(found: Any) -> str:
    """Return one line that says what was run."""
    work, options = found["workload"], found["options"]
    loop = (
        f"closed loop, {options['concurrency']} conversations at a time, pauses x "
        f"{options['think_scale']:g}"
        if options["mode"] == "closed"
        else f"open loop, speed x {options['speed']:g}"
    )
    return (
        f"{found['label'] or work['trace']}: {work['requests']:,} requests of "
        f"{work['sessions']:,} conversations, {loop}, {len(options['endpoints'])} endpoint(s)"
        + ("" if found["ended"] == "complete" else f"; ended early: {found['ended']}")
    )


def spreads(found: Any) -> list[tuple[str, Spread]]:
    """Return the kinds of time."""
    return [(shown, Spread(**found["figures"][name])) for name, shown in TIMES]


Shown = Callable[[float | None], str]
