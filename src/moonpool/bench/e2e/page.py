"""One or two runs as one page of HTML that needs nothing else."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from typing import Any

from moonpool.bench.e2e import plots, rows
from moonpool.bench.e2e.compare import COLUMNS, ratio_rows, warning

NOTES = (
    "Latencies count from when a request was to be sent, whether or not it was sent then. "
    "Percentiles are by nearest rank. ITL is the time between two tokens; those of one event are "
    "0 apart. TPOT is a request's mean time for a token after the first. Hits by source are the "
    "engines' own counters between the end of the warm-up and the end of the run; the ideal is "
    "what one cache for all that forgets nothing would have had, of the prompts that were sent, in "
    "the engines' blocks. A miss's cost is fitted to the times to the first token by least "
    "squares, queues included."
)


def page(found: Any) -> str:
    """Return the report of a run."""
    parts = [
        _table(["", *rows.SHOWN], rows.time_rows(found)),
        _table(["", "tokens", "share"], rows.hit_rows(found)),
        _table(["", ""], [list(each) for each in rows.facts(found)]),
        _bands(found),
        _pictures([(found["label"] or "this run", found)]),
        _pool(found),
    ]
    return _whole(rows.heading(found), parts)


def comparison_page(first: plots.Run, second: plots.Run) -> str:
    """Return two runs side by side."""
    (one, left), (other, right) = first, second
    lines = [f"{one}: {rows.heading(left)}", f"{other}: {rows.heading(right)}"]
    lines += [text] if (text := warning(left, right)) else []
    titles = "".join(f"<p>{_text(line)}</p>" for line in lines)
    table = _table(["", one, other, *COLUMNS], ratio_rows(left, right))
    return _whole(f"{one} and {other}", [titles, table, _pictures([first, second])])


def _bands(found: Any) -> str:
    lines = [
        [
            f"{100 * each['low']:.0f} to {100 * each['high']:.0f} %",
            f"{each['requests']:,}",
            rows.seconds(each["ttft_p50_s"]),
        ]
        for each in found["figures"]["bands"]
    ]
    return _table(["of the prompt cached", "requests", "TTFT p50"], lines) if lines else ""


def _pool(found: Any) -> str:
    lines = [list(each) for each in rows.pool_rows(found)]
    if not lines:
        return ""
    table = _table(["counted by pool and connectors", ""], lines)
    return f"<details><summary>The pool's own counters</summary>{table}</details>"


def _pictures(runs: Sequence[plots.Run]) -> str:
    figures = plots.figures(runs)
    return "".join(
        f"<figure>{_svg(plots.rendered(figure, 'svg'), at)}</figure>"
        for at, (_, figure) in enumerate(figures)
    )


def _svg(data: bytes, number: int) -> str:
    """Return a picture's element; its ids must differ from those of the page's other pictures."""
    text = data.decode()
    text = text[text.index("<svg") :]
    return re.sub(r'(id="|href="#|url\(#)', rf"\g<1>f{number}-", text)


def _table(headings: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{_text(each)}</th>" for each in headings)
    body = "".join(
        "<tr>" + "".join(f"<td>{_text(cell)}</td>" for cell in line) + "</tr>" for line in lines
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _text(value: str) -> str:
    return html.escape(value)


def _whole(title: str, parts: Sequence[str]) -> str:
    body = "\n".join(part for part in parts if part)
    return _PAGE.format(title=_text(title), body=body, notes=_text(NOTES))


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>
body {{ font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 80em; padding: 0 1em; }}
h1 {{ font-size: 1.3em; }}
table {{ border-collapse: collapse; margin: 1em 0; }}
th, td {{ border-bottom: 1px solid #ddd; padding: .3em .8em; text-align: right; font-weight: 400; }}
th:first-child, td:first-child {{ text-align: left; }}
thead th {{ color: #555; }}
figure {{ display: inline-block; margin: .5em; width: 46%; min-width: 26em; }}
figure svg {{ width: 100%; height: auto; }}
</style></head><body><h1>{title}</h1>
{body}
<p>{notes}</p></body></html>
"""
