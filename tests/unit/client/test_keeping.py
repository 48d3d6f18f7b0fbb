"""Pins and sessions as a program uses them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from moonpool import InvalidArgumentError, InvalidKeyError, Store
from moonpool.client.wishes import Wishes
from moonpool.errors import NotSupportedError, PinQuotaError

MIB = 1 << 20


@pytest.fixture
def store() -> Iterator[Store]:
    with Store.local(8 * MIB) as made:
        yield made


def fill(store: Store, count: int, name: str = "filler") -> None:
    for number in range(count):
        assert store.put(f"{name}{number}", b"x" * MIB)


def test_a_pinned_object_stays_until_it_is_unpinned(store: Store) -> None:
    store.put("kept", b"x" * MIB)
    assert store.pin(["kept", "missing"]) == [0, -704]
    fill(store, 20)
    assert store.exists("kept")
    assert store.stat("kept").pinned
    assert store.unpin(["kept"]) == [0]
    fill(store, 20, "more")
    assert not store.exists("kept")


def test_a_put_over_the_quota_of_pins_says_so(store: Store) -> None:
    for number in range(4):
        store.put(f"k{number}", b"x" * MIB, wishes=Wishes(pinned=True))
    with pytest.raises(PinQuotaError, match="as much is pinned"):
        store.put("more", b"x" * MIB, wishes=Wishes(pinned=True))
    assert store.put("more", b"x" * MIB, wishes=Wishes(soft_pin_s=5.0))
    assert 0 < store.stat("more").soft_pin_s <= 5.0


def test_an_ended_session_makes_room_first(store: Store) -> None:
    fill(store, 4)
    store.put("a", b"x" * MIB)
    store.put("b", b"x" * MIB, parent="a")
    store.use_session("talk", ["b"])
    assert store.end_session("talk") == 2
    assert store.end_session("talk") == 0
    fill(store, 4, "more")
    assert store.exists_batch(["a", "b", "filler0", "filler3"]) == [False, False, True, True]


def test_what_makes_no_sense_is_refused(store: Store) -> None:
    store.put("k", b"x")
    for session in ("", "x" * 129):
        with pytest.raises(InvalidArgumentError):
            store.use_session(session, ["k"])
        with pytest.raises(InvalidArgumentError):
            store.end_session(session)
    with pytest.raises(InvalidArgumentError):
        store.pin(["k"], soft_s=0)
    with pytest.raises(InvalidArgumentError):
        store.pin(["k"], soft_s=1e9)
    with pytest.raises(InvalidKeyError):
        store.pin([""])


def test_an_older_master_is_not_asked(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(store._channel), "version", 3)
    assert not store.keeps
    for call in (
        lambda: store.pin(["k"]),
        lambda: store.unpin(["k"]),
        lambda: store.use_session("s", ["k"]),
        lambda: store.end_session("s"),
    ):
        with pytest.raises(NotSupportedError):
            call()
