"""Lookups in the master's table: the same answers as the master's, or none."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moonpool.client import board as reading
from moonpool.client.board import board_of
from moonpool.core import messages as m
from moonpool.core.keys import key_of, pack
from moonpool.core.marks import Marks
from moonpool.core.master import MasterConfig, MasterState
from moonpool.errors import ProtocolError
from moonpool.master.board import Board
from moonpool.protocol import board as layout
from moonpool.protocol.board import Header, file_name, pack_header, parse_header

EPOCH = 7
SPACES = [b"", b"n", b"N" * 16]
PAGE = 4096


def digest(number: int) -> bytes:
    return number.to_bytes(16, "big")


def offer(board: Board) -> m.Welcome:
    return m.Welcome(1, EPOCH, board.path, board.host, board.cookie)


@pytest.fixture
def written(tmp_path: Path) -> Iterator[Board]:
    board = Board(tmp_path, EPOCH)
    yield board
    board.close()


@pytest.fixture
def marks(written: Board) -> Marks:
    return Marks(written.seed, written)


def reader(board: Board) -> reading.Board:
    found = board_of(offer(board))
    assert found is not None
    return found


def count(board: reading.Board, blocks: int, space: bytes = b"") -> int | None:
    return board.prefix(space, b"".join(map(digest, range(blocks))), 1)


def test_what_the_master_adds_and_removes_is_seen_at_once(written: Board, marks: Marks) -> None:
    board = reader(written)
    assert count(board, 3) == 0
    for number in range(3):
        marks.add(pack(digest(number)))
    assert (count(board, 3), count(board, 4), count(board, 3, b"other")) == (3, 3, 0)
    assert (board.has(pack(digest(2))), board.has(key_of("name"))) == (True, False)
    marks.remove(pack(digest(1)))
    assert count(board, 3) == 1
    found = board.which([pack(digest(number)) for number in range(4)])
    assert found is not None
    assert found.tolist() == [True, False, True, False]


def test_keys_of_other_shapes_are_left_to_the_master(written: Board, marks: Marks) -> None:
    board = reader(written)
    digests: list[bytes] = [pack(digest(1), b"n"), pack(digest(1), b"o")]
    assert board.which(digests) is None
    assert board.which([key_of("a"), key_of("b")]) is None
    assert board.which([pack(digest(1)), key_of("x" * 15), key_of("y" * 17)]) is None


def test_a_table_that_grew_is_followed(written: Board, marks: Marks, tmp_path: Path) -> None:
    board = reader(written)
    first = written.path
    for number in range(5000):
        marks.add(pack(digest(number)))
    assert written.path != first
    assert [str(path) for path in tmp_path.iterdir()] == [written.path]
    assert count(board, 5000) == 5000
    assert not board.lost
    for number in range(5000, 20_000):
        marks.add(pack(digest(number)))
    assert count(board, 20_000) == 20_000


def test_a_closed_table_is_not_believed(written: Board, marks: Marks, tmp_path: Path) -> None:
    board = reader(written)
    welcome = offer(written)
    written.close()
    assert count(board, 1) is None
    assert board.lost
    assert board.has(pack(digest(1))) is None
    assert list(tmp_path.iterdir()) == []
    assert board_of(welcome) is None
    marks.add(key_of("a"))


def test_a_master_that_is_silent_is_not_believed_until_it_is_back(
    written: Board, marks: Marks, monkeypatch: pytest.MonkeyPatch
) -> None:
    board = reader(written)
    now = time.monotonic_ns()
    monkeypatch.setattr(time, "monotonic_ns", lambda: now)
    written.beat()
    assert count(board, 1) == 0
    now += int(layout.STALE_S * 1e9)
    assert count(board, 1) is None
    now -= int(2 * layout.STALE_S * 1e9)
    assert count(board, 1) is None
    written.beat()
    assert count(board, 1) == 0


@pytest.mark.parametrize("change", ["truncate", "mode", "link", "cookie", "epoch", "host", "gone"])
def test_what_is_odd_about_the_file_leaves_lookups_to_the_master(
    written: Board, marks: Marks, tmp_path: Path, change: str
) -> None:
    path, welcome = Path(written.path), offer(written)
    if change == "truncate":
        os.truncate(path, path.stat().st_size - PAGE)
    elif change == "mode":
        path.chmod(0o604)
    elif change == "link":
        path.rename(tmp_path / "other")
        path.symlink_to(tmp_path / "other")
    elif change == "gone":
        path.unlink()
    else:
        wrong: dict[str, dict[str, Any]] = {
            "cookie": {"board_cookie": 5},
            "epoch": {"epoch": 8},
            "host": {"board_host": "x"},
        }
        fields = {name: getattr(welcome, name) for name in welcome.__struct_fields__}
        welcome = m.Welcome(**(fields | wrong[change]))
    assert board_of(welcome) is None


def test_a_file_that_shrinks_under_its_readers_is_left_alone(written: Board, marks: Marks) -> None:
    board = reader(written)
    os.truncate(written.path, PAGE)
    assert count(board, 1) is None
    os.truncate(written.path, PAGE + 16 * marks.slots)


def test_relative_paths_are_not_opened(written: Board, marks: Marks) -> None:
    assert board_of(m.Welcome(1, EPOCH, "marks-1.1", written.host, 1)) is None


@given(st.binary(max_size=300), st.integers(0, 1 << 40))
def test_a_start_that_is_none_is_a_protocol_error(raw: bytes, file_bytes: int) -> None:
    with pytest.raises(ProtocolError):
        parse_header(raw, file_bytes)


@given(st.integers(0, 40), st.binary(max_size=64), st.integers(0, (1 << 63) - 1))
def test_headers_say_what_was_written(power: int, seed: bytes, cookie: int) -> None:
    header = Header(EPOCH, cookie, 3, 1 << power, seed)
    raw = pack_header(header)
    if power > 36:
        with pytest.raises(ProtocolError):
            parse_header(raw, header.file_bytes)
    else:
        assert parse_header(raw, header.file_bytes) == header


def test_what_dead_masters_left_is_removed(tmp_path: Path) -> None:
    living = Board(tmp_path, 1)
    Marks(living.seed, living)
    dead = tmp_path / file_name(99, 1)
    dead.write_bytes(b"left")
    (tmp_path / "other").write_bytes(b"not ours")
    board = Board(tmp_path, 2)
    Marks(board.seed, board)
    assert not dead.exists()
    assert {path.name for path in tmp_path.iterdir()} == {
        Path(living.path).name,
        Path(board.path).name,
        "other",
    }
    living.close()
    board.close()


def test_without_a_directory_the_master_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    board = Board(tmp_path / "file", EPOCH)
    marks = Marks(board.seed, board)
    marks.add(key_of("a"))
    assert (board.path, key_of("a") in marks) == ("", True)
    assert "no lookups through shared memory" in caplog.text
    board.beat()
    board.close()


def test_when_memory_runs_out_the_master_goes_on_and_readers_ask_it(
    written: Board, marks: Marks, monkeypatch: pytest.MonkeyPatch
) -> None:
    board = reader(written)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    keys = [pack(digest(number)) for number in range(2000)]
    for key in keys:
        marks.add(key)
    marks.validate(keys)
    assert written.path == ""
    assert count(board, 1) is None
    assert board.lost


# --- the same answers -----------------------------------------------------------------------------

numbers = st.integers(0, 11)
actions = st.sampled_from(["put", "put", "put", "remove", "lose", "come", "remove_all"])
scripts = st.lists(st.tuples(actions, numbers, st.sampled_from(SPACES)), max_size=60)


class Played:
    """A master with a pool of a few pages, so that puts evict."""

    def __init__(self, board: Board) -> None:
        self.master = MasterState(MasterConfig(), EPOCH, Marks(board.seed, board))
        self.mounts = 0
        self.come()

    def ask(self, request: object, peer: str = "c") -> object:
        return self.master.handle(request, peer, 1.0).reply  # type: ignore[arg-type]

    def come(self) -> None:
        self.mounts += 1
        info = m.SegmentInfo("s", "n", "h", "a", "/p", 12 * PAGE, 16)
        mounted = self.ask(m.Mount(info), f"n{self.mounts}")
        assert isinstance(mounted, m.Mounted)
        self.ask(m.Announce(mounted.handle, [], True), f"n{self.mounts}")

    def do(self, action: str, number: int, space: bytes) -> None:
        key = pack(digest(number), space)
        if action == "put":
            started = self.ask(m.PutStart([m.PutItem(key, PAGE)]))
            assert isinstance(started, m.PutStarted)
            grant = started.grants[0]
            if grant.code == 0:
                self.ask(m.PutEnd([grant.generation], [1]))
        elif action == "remove":
            self.ask(m.Remove([key]))
        elif action == "remove_all":
            self.ask(m.RemoveAll(pack(digest(number), space)[:-1]))
        elif action == "lose":
            self.ask(m.PeerGone(f"n{self.mounts}", "node"))
        else:
            self.come()


@settings(max_examples=100, deadline=None)
@given(scripts, st.integers(1, 5))
def test_the_table_and_the_master_agree(
    tmp_path_factory: pytest.TempPathFactory, script: list[tuple[str, int, bytes]], stride: int
) -> None:
    written = Board(tmp_path_factory.getbasetemp() / "board", EPOCH)
    played = Played(written)
    board = reader(written)
    blocks = b"".join(map(digest, range(12)))
    try:
        for action, number, space in script:
            played.do(action, number, space)
            written.beat()
            keys: list[bytes] = [pack(digest(i), space) for i in range(12)]
            existing = played.ask(m.Exists(keys))
            assert isinstance(existing, m.Existing)
            found = board.which(keys)
            assert found is not None
            assert bytes(found.tolist()) == existing.present
            assert [board.has(key) for key in keys] == found.tolist()
            matched = played.ask(m.Match(space, blocks, 16, stride))
            assert isinstance(matched, m.Matched)
            assert board.prefix(space, blocks, stride) == matched.count
    finally:
        written.close()
