"""A run as rows for people, made from its JSON, so that an old file shows as a new run does."""

from __future__ import annotations

from typing import Any

TIMES = (("ttft_s", "TTFT"), ("itl_s", "ITL"), ("tpot_s", "TPOT"), ("e2e_s", "end to end"))
SHOWN = ("mean", "p50", "p90", "p95", "p99", "max")

OWN_HITS = "vllm:moonpool_hit_tokens_total"

Row = tuple[str, str]


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
    hit = _sum(hits["hbm"], hits["pool"])
    return [
        ["engines' own cache (HBM)", amount(hits["hbm"]), percent(hits["hbm_rate"])],
        ["pool", amount(hits["pool"]), percent(hits["pool_rate"])],
        *_own_count(found),
        ["recomputed", amount(hits["recomputed"]), percent(hits["recomputed_rate"])],
        ["hit, by the counters", amount(hit), percent(hits["hit_rate"])],
        ["hit, by the answers", amount(hits["cached"]), percent(hits["answers_hit_rate"])],
        ["ideal: one cache that forgets nothing", amount(hits["ideal"]),
         percent(hits["ideal_rate"])],
    ]  # fmt: skip


def _own_count(found: Any) -> list[list[str]]:
    """Return what moonpool's connectors count, where there are any."""
    told = [each["counters"] or {} for each in found["engines"]]
    tokens = [each[OWN_HITS] for each in told if OWN_HITS in each]
    if not tokens:
        return []
    queries = found["hits"]["queries"]
    share = sum(tokens) / queries if queries else None
    return [["pool, by moonpool's connectors", amount(sum(tokens)), percent(share)]]


def _sum(one: float | None, other: float | None) -> float | None:
    return None if one is None else one + (other or 0.0)


def miss_rows(miss: Any) -> list[Row]:
    """Return what a miss costs."""
    if miss is None:
        return [("a miss costs", "unknown")]
    text = (
        f"{1e6 * miss['miss_s']:.1f} µs a token (computed {1e6 * miss['computed_s']:.1f}, "
        f"cached {1e6 * miss['cached_s']:.1f}; explains {100 * miss['fitted']:.0f} %)"
    )
    return [
        ("a miss costs", text),
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
