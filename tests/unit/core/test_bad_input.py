"""Whatever a request says, the master answers and its state stays sound."""

from __future__ import annotations

import math
import types
import typing
from typing import Any

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from moonpool.core import messages as m
from moonpool.core.keys import key_of
from moonpool.core.master import MasterConfig, MasterState
from tests.unit.core.driver import NAMESPACE, PAGE, block

KEYS = [key_of("a"), key_of("b"), *(block(i) for i in range(4)), key_of("k" * 300)]
PEERS = ["c1", "c2", "n1", "n2", ""]

numbers = st.one_of(
    st.integers(-1, 5),
    st.sampled_from(
        [PAGE, 2 * PAGE, 64, 1000, 1 << 20, (1 << 32) + 1, (1 << 32) + 2, (1 << 32) + 3]
    ),
    st.sampled_from([1 << 31, 1 << 40, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, -(1 << 63)]),
)
octets = st.one_of(st.sampled_from(KEYS), st.sampled_from([b"", NAMESPACE]), st.binary(max_size=20))
seconds = st.one_of(
    st.floats(0, 50), st.sampled_from([math.nan, math.inf, -math.inf, -1.0, 1e300, 1e-300])
)
texts = st.sampled_from(["", "n1", "n2", "host", "s", "client", "node", "c1", "\x00", "x" * 5000])
BY_TYPE: dict[Any, st.SearchStrategy[Any]] = {
    int: numbers,
    bytes: octets,
    float: seconds,
    str: texts,
    bool: st.booleans(),
    types.NoneType: st.none(),
}


def values(kind: Any) -> st.SearchStrategy[Any]:
    """Return values of a field's type."""
    if kind in BY_TYPE:
        return BY_TYPE[kind]
    if typing.get_origin(kind) is list:
        return st.lists(values(typing.get_args(kind)[0]), max_size=5)
    if typing.get_origin(kind) in (types.UnionType, typing.Union):
        return st.one_of(*(values(each) for each in typing.get_args(kind)))
    return messages(kind)


def messages(kind: type[msgspec.Struct]) -> st.SearchStrategy[Any]:
    """Return messages with fields of the right types and any values."""
    hints = typing.get_type_hints(kind, vars(m))
    return st.builds(kind, **{name: values(hints[name]) for name in kind.__struct_fields__})


segment = st.builds(
    m.SegmentInfo,
    name=st.just("s"),
    node=st.sampled_from(["n1", "n2"]),
    host=st.just("host"),
    address=texts,
    path=texts,
    data_bytes=st.sampled_from([PAGE, 8 * PAGE, 64 * PAGE]),
    slots=st.sampled_from([1, 8, 64]),
)
handles = st.integers(1, 4)
sane = st.one_of(
    st.builds(m.Mount, segment, st.sampled_from([0, 7, 1 << 33])),
    st.builds(m.Announce, handles, values(list[m.Found]), st.booleans()),
    st.builds(
        m.Announce,
        handles,
        st.lists(
            st.builds(
                m.Found,
                key=st.sampled_from(KEYS[:-1]),
                parent=st.sampled_from([b"", *KEYS]),
                size=st.integers(1, PAGE),
                capacity=st.sampled_from([PAGE, 2 * PAGE]),
                checksum=st.integers(0, 1),
                generation=st.one_of(st.integers(1, 9), st.integers((1 << 32), (1 << 32) + 9)),
                index=st.integers(0, 8),
                offset=st.integers(0, 16).map(lambda i: i * PAGE),
                writing=st.booleans(),
            ),
            max_size=6,
        ),
        st.booleans(),
    ),
    st.builds(
        m.PutStart,
        st.lists(
            st.builds(
                m.PutItem,
                st.sampled_from(KEYS),
                st.integers(1, 8 * PAGE),
                st.sampled_from([b"", *KEYS]),
            ),
            max_size=5,
        ),
        st.integers(1, 2),
        st.sampled_from(["", "n1"]),
        st.booleans(),
    ),
    st.lists(st.integers(1, 12), max_size=5).map(
        lambda picks: m.PutEnd([(1 << 32) + pick for pick in picks], picks)
    ),
    st.builds(m.PeerGone, st.sampled_from(PEERS), st.sampled_from(["client", "node", "else"])),
    st.just(m.Tick()),
)
kinds = [*typing.get_args(m.Request), m.PeerGone]
requests = st.one_of(sane, sane, st.one_of(*(messages(kind) for kind in kinds)))


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.tuples(requests, st.sampled_from(PEERS), seconds), min_size=1, max_size=25),
)
def test_no_request_raises_or_breaks_the_state(script: list[tuple[Any, str, float]]) -> None:
    master = MasterState(MasterConfig(), 1)
    for step, (request, peer, later) in enumerate(script):
        outcome = master.handle(request, peer, step + later)
        master.validate_state()
        assert outcome.reply is None or isinstance(outcome.reply, typing.get_args(m.Reply))
        assert all(isinstance(push, typing.get_args(m.Push)) for _, push in outcome.pushes)
        msgspec.msgpack.encode(outcome.reply)


def test_answers_have_one_entry_for_each_item() -> None:
    master = MasterState(MasterConfig(), 1)
    for count in (0, 1, 7):
        keys = [b"\xff"] * count
        for request, field in (
            (m.PutStart([m.PutItem(b"", 1)] * count), "grants"),
            (m.PutEnd([1] * count, [1] * count), "codes"),
            (m.PutRevoke([1] * count), "codes"),
            (m.PutAbandon([1] * count), "codes"),
            (m.Get(keys, 1, 1.0), "objects"),
            (m.Remove(keys), "codes"),
            (m.Exists(keys), "present"),
        ):
            assert len(getattr(master.handle(request, "c", 0.0).reply, field)) == count
