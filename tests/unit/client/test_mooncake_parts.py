"""What needs no cluster: names, and how batches are cut for the wheel."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moonpool import Store
from moonpool.client.mooncake import moving
from moonpool.client.mooncake.channel import _escaped
from moonpool.client.mooncake.keys import key_of_name, name_of
from moonpool.core.keys import key_of, pack
from moonpool.errors import ConfigError
from moonpool.transport.base import Pieces


@given(st.binary(min_size=1, max_size=40), st.sampled_from([b"", bytes(range(16))]))
def test_names_are_told_apart_and_lead_back(name: bytes, namespace: bytes) -> None:
    if namespace:
        name = name.ljust(16, b"\0")[:16]
    key = pack(name, namespace)
    there = name_of(key)
    there.encode()
    if not namespace and key_of_name(there) != key:
        # A name of people that reads like a block of an engine.
        assert len(there) == 65
        return
    assert key_of_name(there) == key


def test_a_name_of_people_is_the_same_there() -> None:
    assert name_of(key_of("model@tp_rank:0@00ff")) == "model@tp_rank:0@00ff"


@given(
    st.lists(st.tuples(st.integers(1, 5), st.integers(1, 100)), min_size=1, max_size=30),
    st.integers(1, 400),
    st.integers(1, 12),
    st.integers(1, 7),
)
def test_parts_are_bounded_and_leave_nothing_out(
    objects: list[tuple[int, int]], nbytes: int, pieces: int, count: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(moving, "PART_BYTES", nbytes)
        patch.setattr(moving, "PART_PIECES", pieces)
        patch.setattr(moving, "PART_OBJECTS", count)
        counts = [n for n, _ in objects]
        starts = np.concatenate(([0], np.cumsum(counts)))
        lengths = np.repeat([size for _, size in objects], counts).astype(np.uint64)
        memory = Pieces(np.zeros(len(lengths), np.uint64), lengths, starts)
        cut = list(moving._parts(np.arange(len(objects)), memory))
    assert np.concatenate(cut).tolist() == list(range(len(objects)))
    for part in cut:
        assert len(part) <= count
        if len(part) > 1:
            assert sum(objects[i][0] * objects[i][1] for i in part.tolist()) <= nbytes
            assert sum(objects[i][0] for i in part.tolist()) <= pieces


def test_an_engine_that_there_is_not() -> None:
    with pytest.raises(ConfigError, match="engine"):
        Store.connect(engine="redis")


def test_without_the_wheel_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "mooncake", None)
    with pytest.raises(ConfigError, match=r"moonpool\[mooncake\]"):
        Store.connect("127.0.0.1:1", engine="mooncake")


@given(st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=20))
def test_prefixes_mean_themselves(text: str) -> None:
    import re

    assert re.search(f"^{_escaped(text)}", text)
