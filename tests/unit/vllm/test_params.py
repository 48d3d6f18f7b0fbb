"""Anything may stand in kv_transfer_params."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moonpool.vllm import params
from moonpool.vllm.params import NONE, Wish

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)
KEYS = (
    "moonpool",
    "do_remote_decode",
    "do_remote_prefill",
    "transfer_id",
    "remote_engine_id",
    "tp_size",
)
HOSTILE = PLAIN | st.dictionaries(
    st.sampled_from(KEYS), PLAIN | st.just(True) | st.just("id") | st.just("x" * 200)
)


def to_p(transfer: Any = "id-1") -> dict[str, Any]:
    return {"do_remote_decode": True, "do_remote_prefill": False, "transfer_id": transfer}


def to_d(transfer: Any = "id-1") -> dict[str, Any]:
    return {
        "do_remote_decode": False,
        "do_remote_prefill": True,
        "transfer_id": transfer,
        "remote_bootstrap_addr": "http://p:8998",
        "remote_engine_id": "e",
    }


def test_what_routers_send_is_understood() -> None:
    assert params.read(to_p()) == (Wish("id-1", sends=True), False)
    assert params.read(to_d()) == (Wish("id-1", receives=True), False)


@pytest.mark.parametrize("value", [None, {}, {"other": 1}, {"do_remote_decode": False}])
def test_nothing_asked_is_nothing(value: Any) -> None:
    assert params.read(value) == (NONE, False)


@pytest.mark.parametrize("transfer", [None, "", 7, ["a"], "x" * 129, "a\nb", "\ud800", True])
def test_an_id_that_is_none_is_ignored(transfer: Any) -> None:
    assert params.read(to_p(transfer)) == (NONE, True)
    assert params.read(to_d(transfer)) == (NONE, True)


@pytest.mark.parametrize(
    "value",
    [
        "do_remote_decode",
        [1],
        7,
        to_p() | {"do_remote_prefill": True},
        {"do_remote_decode": "yes", "transfer_id": "t"},
        {"do_remote_decode": 1, "transfer_id": "t"},
    ],
)
def test_what_makes_no_sense_is_ignored(value: Any) -> None:
    assert params.read(value) == (NONE, True)


def test_the_sound_part_counts() -> None:
    assert params.read(to_p() | {"do_remote_prefill": "no"}) == (Wish("id-1", sends=True), True)


@pytest.mark.parametrize(
    ("said", "wish", "odd"),
    [
        ({"session": "s"}, Wish(session="s"), False),
        ({"session": "s", "end_session": True}, Wish(session="s", last=True), False),
        ({"session": "s", "end_session": False}, Wish(session="s"), False),
        ({"session": "s", "end_session": "yes"}, Wish(session="s"), True),
        ({"transfer_id": "t", "tokens": 7}, NONE, False),
        ({"end_session": True}, NONE, True),
        ({"session": ""}, NONE, True),
        ({"session": "x" * 129}, NONE, True),
        ("s", NONE, True),
    ],
)
def test_sessions_are_understood(said: Any, wish: Wish, odd: bool) -> None:
    assert params.read({"moonpool": said}) == (wish, odd)
    both, _ = params.read(to_p() | {"moonpool": said})
    assert both == Wish("id-1", True, False, wish.session, wish.last)


@given(HOSTILE)
def test_nothing_raises(value: Any) -> None:
    wish, odd = params.read(value)
    assert wish == NONE or (not odd or isinstance(value, dict))
    assert not (wish.sends and wish.receives)
    assert len(wish.transfer) <= 128
    assert len(wish.session) <= 128
    json.dumps(wish.transfer).encode()
