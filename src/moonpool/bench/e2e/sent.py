"""The requests as they were sent, as a trace: what a simulation is to be held against."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from moonpool.bench.e2e.record import Record
from moonpool.trace_line import Line
from moonpool.workload.selection import Selection
from moonpool.workload.write import Numbers


def lines_of(records: Sequence[Record], selection: Selection) -> Iterator[Line]:
    """Yield Mooncake's lines: blocks after the cut, times as intended, pauses since the answer
    before."""
    items = {(item.session, item.turn): item for item in selection.items}
    numbers = Numbers()
    ended_s: dict[str, float] = {}
    for record in sorted(records, key=lambda each: (each.intended_s, each.number)):
        item = items[record.session, record.turn]
        before = ended_s.get(record.session)
        ended_s[record.session] = record.ended_s
        yield Line(
            round(1000 * record.intended_s),
            item.input_tokens,
            item.output_tokens,
            [numbers.block(item.scope, each) for each in item.blocks.tolist()],
            record.session,
            None if before is None else round(1000 * max(0.0, record.intended_s - before), 3),
        )
