"""Segments on disk over the lives of nodes."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from moonpool.errors import ConfigError
from moonpool.node.storage import Storage, remove_stale
from moonpool.transport.segment import Segment
from moonpool.transport.shm import ShmTransport
from tests.unit.transport.support import batch, keys, places

MIB = 1024 * 1024


def storage(root: Path, name: str = "n", size: int = 8 * MIB, segment: int = 8 * MIB) -> Storage:
    return Storage(name, str(root), size, segment)


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Storage]:
    made = storage(tmp_path / "root")
    made.open()
    yield made
    made.close(delete=True)


def fill(segment: Segment, count: int = 5, generation: int = 10) -> None:
    where = places([5000] * count, generation)
    written = ShmTransport(segment).write(where, batch(1, [5000] * count).pieces, keys(count), [])
    assert not written.codes.any()


def users_of(opened: Storage) -> Path:
    return Path(opened.attachable()[0].users)


def test_a_clean_end_leaves_nothing(tmp_path: Path) -> None:
    made = storage(tmp_path / "root", size=20 * MIB)
    made.open()
    assert [s.header.name for s in made.segments()] == ["segment-0", "segment-1", "segment-2"]
    assert sum(s.geometry.total_bytes for s in made.segments()) <= 20 * MIB
    assert {info.name for info in made.infos("h:1")} == {s.header.name for s in made.segments()}
    made.close(delete=True)
    assert not (tmp_path / "root").exists()


def test_a_root_that_was_there_stays(tmp_path: Path) -> None:
    made = storage(tmp_path)
    made.open()
    made.close(delete=True)
    assert list(tmp_path.iterdir()) == []


def test_the_next_life_takes_over(tmp_path: Path) -> None:
    first = storage(tmp_path)
    first.open()
    epoch = first.segments()[0].header.epoch
    fill(first.segments()[0])
    begun = places([100], 99, base=4 * MIB, index=77)
    first.segments()[0].begin(begun, keys(1), [])
    first.segments()[0].data()[0] ^= 1
    first.close(delete=False)
    second = storage(tmp_path)
    second.open()
    assert second.segments()[0].header.epoch == epoch
    found = second.contents("segment-0")
    assert [f.index for f in found.found] == [0, 1, 2, 3, 4]
    assert second.doubtful() == ["segment-0"]
    assert [index for indexes, _, _ in second.segments()[0].damaged() for index in indexes] == [0]
    second.trust("segment-0")
    assert second.doubtful() == []
    assert not list(tmp_path.glob("**/*.doubt"))
    assert [f.index for f in found.writing] == [77]
    assert found.generation_max == 99
    assert len(second.contents("segment-0").found) == 5
    assert not second.has_old_users()
    second.close(delete=True)


def test_what_is_put_after_a_take_over_is_told_too(tmp_path: Path) -> None:
    """By clients whose master has not heard yet that the node has started anew."""
    first = storage(tmp_path)
    first.open()
    fill(first.segments()[0])
    first.close(delete=False)
    second = storage(tmp_path)
    second.open()
    late = places([100], 99, base=4 * MIB, index=77)
    assert not second.segments()[0].begin(late, keys(1), []).any()
    assert not second.segments()[0].seal(late, np.zeros(1, np.uint64)).any()
    assert [f.index for f in second.contents("segment-0").found] == [0, 1, 2, 3, 4, 77]
    second.close(delete=True)


def test_another_size_starts_afresh(tmp_path: Path) -> None:
    first = storage(tmp_path)
    first.open()
    fill(first.segments()[0])
    first.close(delete=False)
    second = storage(tmp_path, size=16 * MIB, segment=16 * MIB)
    second.open()
    assert second.contents("segment-0").found == []
    second.close(delete=True)
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_segment_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "n").mkdir()
    (tmp_path / "n" / "segment-0.seg").write_bytes(b"rubbish" * 1000)
    (tmp_path / "n" / "segment-7.seg").write_bytes(b"")
    made = storage(tmp_path)
    made.open()
    assert sorted(p.suffix for p in (tmp_path / "n").iterdir()) == [".seg", ".users"]
    made.close(delete=True)


def test_two_nodes_of_one_name(opened: Storage) -> None:
    other = storage(opened.root)
    with pytest.raises(ConfigError, match="name: a node 'n' runs"):
        other.open()
    other.close(delete=True)
    assert Path(opened.segments()[0].path).exists()
    assert users_of(opened).exists()


@pytest.mark.parametrize("name", ["", ".", "../up", "a/b", "x" * 101, "a\n"])
def test_names_that_are_no_directory(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="name: "):
        storage(tmp_path, name)


@pytest.mark.parametrize(("size", "segment", "key"), [(5, MIB, "size"), (MIB, 5, "segment_size")])
def test_sizes_that_are_too_small(size: int, segment: int, key: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"^{key}: "):
        storage(tmp_path, size=size, segment=segment)


@pytest.mark.parametrize(("object_size", "slots"), [(4096, 14_000), (65_536, 4096)])
def test_the_table_is_made_for_the_expected_objects(
    object_size: int, slots: int, tmp_path: Path
) -> None:
    made = Storage("n", str(tmp_path / "root"), 64 * MIB, 64 * MIB, object_size)
    made.open()
    # One entry holds no object: the segment's floor.
    assert slots - 1 <= made.infos("here:1")[0].slots < 1.1 * slots
    made.close(delete=True)


def test_objects_smaller_than_a_page_are_not_expected(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^object_size: 4095 .* at least 4096"):
        Storage("n", str(tmp_path), 8 * MIB, 8 * MIB, 4095)


def test_more_than_is_free(tmp_path: Path) -> None:
    made = storage(tmp_path, size=1 << 41, segment=1 << 41)
    with pytest.raises(ConfigError, match=r"^size: .* are free in"):
        made.open()
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"^segment_dir: "):
        storage(tmp_path / "file").open()


def test_users_of_the_life_before(tmp_path: Path) -> None:
    first = storage(tmp_path)
    first.open()
    fd = os.open(users_of(first), os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_SH)
    first.close(delete=False)
    second = storage(tmp_path)
    second.open()
    assert second.has_old_users()
    os.close(fd)
    assert not second.has_old_users()
    assert [p.name for p in (tmp_path / "n").glob("*.users")] == [users_of(second).name]
    second.close(delete=True)


def test_stale_segments_of_others(opened: Storage) -> None:
    root = opened.root
    dead = storage(root, "dead")
    dead.open()
    path = Path(dead.segments()[0].path)
    now = path.stat().st_mtime
    assert remove_stale(root, "n", now + 700) == []
    dead.close(delete=False)
    assert remove_stale(root, "n", now + 500) == []
    assert path.exists()
    assert remove_stale(root, "dead", now + 700) == []
    assert remove_stale(root, "n", now + 700) == [path]
    assert not path.parent.exists()
    assert opened.segments()[0].scan().torn == 0


def test_beat_makes_files_young(opened: Storage) -> None:
    path = Path(opened.segments()[0].path)
    os.utime(path, (1, 1))
    opened.beat()
    assert path.stat().st_mtime > 1000


def test_a_second_node_is_refused_also_when_the_files_are_gone(opened: Storage) -> None:
    for path in Path(opened.directory).iterdir():
        path.unlink()
    with pytest.raises(ConfigError, match="runs on this host already"):
        storage(opened.root).open()
    assert list(opened.directory.iterdir()) == []


def test_the_directory_is_free_after_the_end_and_after_a_start_that_failed(tmp_path: Path) -> None:
    root = tmp_path / "root"
    with pytest.raises(ConfigError, match="are free in"):
        storage(root, size=1 << 44, segment=1 << 41).open()
    for _ in range(2):
        made = storage(root)
        made.open()
        made.close(delete=False)


def test_what_became_of_the_files_is_found(opened: Storage) -> None:
    (segment,) = opened.segments()
    assert (opened.cut_short(), opened.strays()) == ([], [])
    os.truncate(segment.path, 4096)
    assert opened.cut_short() == [segment.path]
    Path(segment.path).unlink()
    assert (opened.cut_short(), opened.strays()) == ([], [segment.path])


def test_another_file_in_a_segments_place_is_not_deleted(tmp_path: Path) -> None:
    made = storage(tmp_path / "root")
    made.open()
    path = Path(made.segments()[0].path)
    path.unlink()
    path.write_bytes(b"somebody else's")
    assert made.strays() == [str(path)]
    made.close(delete=True)
    assert path.read_bytes() == b"somebody else's"
