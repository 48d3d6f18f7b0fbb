"""A plan as a table for people, and as a page of HTML."""

from __future__ import annotations

import base64
import html

from moonpool.planner.plan import Plan, Site

Rows = list[tuple[str, str]]


def rows_of(plan: Plan, site: Site) -> Rows:
    """Return what a plan says, line by line."""
    engine = site.engine
    sampled = "" if plan.sampled == 1.0 else f", {plan.sampled:.2%} of the blocks followed"
    what = f"{engine.model.name} on {engine.gpus} x {engine.gpu.name}"
    where = f"{site.engines} of them on {site.hosts} hosts, {engine.link.name} each"
    split = f"{plan.dram_gb:,.0f} GB of DRAM, {plan.ssd_gb:,.0f} GB of SSD"
    rows = [
        ("trace", f"{plan.requests:,} requests in {plan.hours:,.1f} h{sampled}"),
        ("engine", f"{what}, {where}"),
        ("KV", f"{plan.kv_bytes:,} B a token; {engine.hbm_tokens:,} tokens fit in an engine"),
        ("hit rate, nothing forgotten", f"{plan.most:.1%}"),
        ("knee of the curve", f"{plan.knee_gb:,.0f} GB"),
        ("all that is ever hit again", f"{plan.whole_gb:,.0f} GB"),
        ("planned pool", f"{plan.pool_gb:,.0f} GB: {split}"),
        ("network, each host", f"{plan.network_gbit_s:,.1f} Gbit/s"),
    ]
    for way, tokens in plan.crossover.items():
        text = "never" if tokens is None else f"from {tokens:,} tokens on"
        rows.append((f"loading pays, {way}", text))
    return rows


def variant_rows(plan: Plan, site: Site) -> list[list[str]]:
    """Return a line for each way to run the trace."""
    return [
        [
            each.name,
            f"{each.hit_rate:.1%}",
            f"{each.ttft_p50_s:.3f}",
            f"{each.ttft_p90_s:.3f}",
            f"{each.gpu_hours:,.2f}",
            *([f"{each.cost_month:,.0f}"] if site.gpu_hour else []),
        ]
        for each in plan.variants
    ]


def headings(site: Site) -> list[str]:
    """Return the headings of ``variant_rows``."""
    found = ["", "hit rate", "TTFT p50, s", "TTFT p90, s", "prefill, GPU hours"]
    return [*found, f"a month, {site.currency or 'money'}"] if site.gpu_hour else found


def page(plan: Plan, site: Site, title: str, figure: bytes) -> str:
    """Return a plan as one page that needs nothing else."""
    picture = base64.b64encode(figure).decode()
    lines = "".join(
        f"<tr><th>{html.escape(name)}</th><td>{html.escape(text)}</td></tr>"
        for name, text in rows_of(plan, site)
    )
    head = "".join(f"<th>{html.escape(each)}</th>" for each in headings(site))
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>"
        for row in variant_rows(plan, site)
    )
    return _PAGE.format(
        title=html.escape(title), picture=picture, lines=lines, head=head, body=body, notes=NOTES
    )


NOTES = (
    "Hit rates are exact reuse distances of the trace (least recently used first, of a prompt its "
    "end first). Times are of one request at a time: queues come on top. Prefill and loads are "
    "computed from the model's shape and the machine's rates; engines' own caches are those of "
    "requests sent in turn."
)
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>
body {{ font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 75em; padding: 0 1em; }}
table {{ border-collapse: collapse; margin: 1em 0; }}
th, td {{ border-bottom: 1px solid #ddd; padding: .3em .8em; text-align: left; font-weight: 400; }}
thead th, tr > th:first-child {{ color: #555; }}
img {{ max-width: 100%; }}
</style></head><body><h1>{title}</h1>
<img alt="hit rate by pool size, load or compute, TTFT" src="data:image/png;base64,{picture}">
<table><tbody>{lines}</tbody></table>
<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>
<p>{notes}</p></body></html>
"""
