"""Messages as they should be, and bytes as they should not."""

from __future__ import annotations

from typing import Any, get_args, get_origin

import msgspec
import msgspec.structs
from hypothesis import strategies as st

from moonpool.core import messages as m
from moonpool.protocol.codec import encode

request_ids = st.integers(0, 2**32 - 1)


def _values(kind: Any) -> st.SearchStrategy[Any]:
    if kind is int:
        return st.integers(0, 2**63 - 1)
    if kind is float:
        return st.floats(allow_nan=False)
    if get_origin(kind) is dict:
        return st.dictionaries(st.text(max_size=5), _values(int), max_size=3)
    if get_origin(kind) is list:
        return st.lists(_values(get_args(kind)[0]), max_size=3)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        fields = {f.name: _values(f.type) for f in msgspec.structs.fields(kind)}
        return st.builds(kind, **fields)
    return st.from_type(kind)


requests: st.SearchStrategy[m.Request] = st.one_of(*map(_values, get_args(m.Request)))
replies: st.SearchStrategy[m.Reply | m.Push] = st.one_of(
    *map(_values, (*get_args(m.Reply), *get_args(m.Push)))
)

_names = [cls.__name__ for cls in (*get_args(m.Request), *get_args(m.Reply))]
_atoms = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**63), 2**64 - 1), st.binary(), st.text(), st.floats()
)
_trees = st.recursive(_atoms, lambda inner: st.lists(inner, max_size=4), max_leaves=12)


def _broken(payload: bytes, where: int, what: bytes, keep: int) -> bytes:
    """Overwrite a few bytes and cut the end off."""
    where %= len(payload)
    return (payload[:where] + what + payload[where + len(what) :])[: 1 + keep % len(payload)]


_nearly = st.builds(
    lambda request_id, name, fields: msgspec.msgpack.encode([request_id, [name, *fields]]),
    st.integers(-1, 2**32),
    st.sampled_from(_names),
    st.lists(_trees, max_size=6),
)
_cut = st.builds(
    lambda message, where, what, keep: _broken(encode(1, message)[4:], where, what, keep),
    requests,
    st.integers(0, 10_000),
    st.binary(max_size=3),
    st.integers(0, 10_000),
)
hostile_payloads: st.SearchStrategy[bytes] = st.one_of(
    st.binary(min_size=1, max_size=64), _nearly, _cut
)
"""Noise, well-formed MessagePack of the wrong shape, and damaged requests."""
