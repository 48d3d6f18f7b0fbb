"""Lookups without a message, and what becomes of them when the master is frozen, dead or new."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from moonpool import DeadlineError, MasterUnreachableError, Store, pack
from tests.integration.processes import Master, Node, eventually, freeze, pool

SPACE = b"N" * 16
DIGESTS = [i.to_bytes(16, "big") for i in range(100)]
KEYS = [pack(digest, SPACE) for digest in DIGESTS]
PACKED = b"".join(DIGESTS)


@pytest.fixture
def running(tmp_path: Path) -> Iterator[tuple[Master, Node]]:
    with pool(tmp_path) as (master, nodes):
        yield master, nodes[0]


def board_of(store: Store) -> Path:
    """Return the file that the store looks objects up in."""
    board = store._channel.board()
    assert board is not None
    return board._file.path


def asked(master: Master, verb: str) -> int:
    """Return how many requests of a kind the master has had."""
    metrics = master.http("/metrics").decode()
    found = re.search(rf'moonpool_requests_total{{kind="{verb}"}} (\d+)', metrics)
    return 0 if found is None else int(found[1])


def test_lookups_on_the_masters_host_are_no_requests(running: tuple[Master, Node]) -> None:
    master, _ = running
    with Store.connect(master.address) as store, Store.connect(master.address) as other:
        assert other.match_digests(SPACE, PACKED) == 0
        assert store.put_batch(KEYS, [b"x"] * 100) == [0] * 100
        assert store.put("name", b"x")
        before = asked(master, "Match") + asked(master, "Exists")
        for each in (store, other):
            assert each.match_digests(SPACE, PACKED) == 100
            assert each.match_digests(b"other", PACKED) == 0
            assert each.match_digests(SPACE, PACKED, stride=30) == 100
            assert each.exists_batch(KEYS) == [True] * 100
            assert (each.exists("name"), each.exists("none")) == (True, False)
        store.remove(KEYS[40])
        assert other.match_digests(SPACE, PACKED) == 40
        store.remove_all()
        assert not other.exists(KEYS[0])
        assert asked(master, "Match") + asked(master, "Exists") == before


def test_a_frozen_master_is_not_believed_for_long(running: tuple[Master, Node]) -> None:
    master, _ = running
    with Store.connect(master.address, timeout_s=1.0) as store:
        store.put(KEYS[0], b"x")
        assert store.match_digests(SPACE, PACKED) == 1
        freeze(master.process.pid)
        try:
            board = store._channel.board()
            assert board is not None
            eventually("it is not believed", lambda: board._current() is None)
            with pytest.raises(DeadlineError):
                store.match_digests(SPACE, PACKED)
        finally:
            master.process.send_signal(signal.SIGCONT)
        eventually("the master is back", lambda: _found(store) == 1)


def _found(store: Store) -> int:
    try:
        return store.match_digests(SPACE, PACKED)
    except MasterUnreachableError:
        return -1


def test_a_dead_master_is_noticed_and_the_next_one_is_believed(
    running: tuple[Master, Node],
) -> None:
    master, _ = running
    with Store.connect(master.address) as store:
        store.put_batch(KEYS, [b"x"] * 100)
        path = board_of(store)
        master.kill()
        with pytest.raises(MasterUnreachableError):
            store.match_digests(SPACE, PACKED)
        assert path.exists()
        master.start()
        eventually("all is known again", lambda: _found(store) == 100)
        assert not path.exists()
        eventually("the new table is in use", lambda: store._channel.board() is not None)
        path = board_of(store)
        assert store.match_digests(SPACE, PACKED) == 100
        assert master.end() == 0
        assert not path.exists()


def test_without_a_table_the_master_is_asked(running: tuple[Master, Node], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with Master(tmp_path, board_dir=tmp_path / "file") as master:
        with Store.connect(master.address) as store:
            assert store.match_digests(SPACE, PACKED) == 0
            assert not store.exists("name")
        assert (asked(master, "Match"), asked(master, "Exists")) == (1, 1)
