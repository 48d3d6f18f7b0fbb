"""The segment file: what is on disk, who owns it, and what is found after a crash."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from moonpool.core.keys import DIGEST_BYTES, pack
from moonpool.errors import InvalidArgumentError, NotFoundError, TransferError
from moonpool.transport import layout
from moonpool.transport.host import host_identity, shares_memory
from moonpool.transport.layout import ENTRY_BYTES, PAGE_BYTES, Geometry
from moonpool.transport.segment import Segment
from moonpool.transport.shm import ShmTransport

from .support import batch, keys, places

MIB = 1024 * 1024


def put(segment: Segment, count: int, generation: int = 100, size: int = 5000) -> list[bytes]:
    """Put objects into slots 0, 1, ... and return their payloads."""
    source = batch(generation, [size] * count)
    where = places([size] * count, generation)
    written = ShmTransport(segment).write(where, source.pieces, keys(count), [])
    assert not written.codes.any()
    return source.payloads()


@pytest.mark.parametrize("data_bytes", [4096, 4097, 16 * MIB, 64 * MIB, 1 << 40])
def test_parts_follow_each_other(data_bytes: int) -> None:
    shape = Geometry.holding(data_bytes)
    assert shape.data_bytes >= data_bytes
    assert shape.owners_offset + 8 * shape.pages <= shape.table_offset
    assert shape.table_offset + ENTRY_BYTES * shape.slots <= shape.data_offset
    assert shape.data_offset % PAGE_BYTES == 0
    assert shape.total_bytes - shape.data_bytes < 0.03 * data_bytes + 4 * MIB


@pytest.mark.parametrize("total", [1 * MIB, 63 * MIB, 66 * MIB, 1 << 30, (1 << 36) + 5])
def test_within_fits_and_wastes_little(total: int) -> None:
    shape = Geometry.within(total)
    assert shape.total_bytes <= total
    assert shape.data_bytes > 0.9 * total - 4 * MIB


@pytest.mark.parametrize("total", [256 * MIB, 1 << 30, 16 << 30, 1 << 40])
def test_what_is_not_payload_is_under_one_percent(total: int) -> None:
    shape = Geometry.within(total)
    assert shape.total_bytes - shape.data_bytes < 0.01 * total


@pytest.mark.parametrize(("data_bytes", "slots"), [(MIB, 256), (64 * MIB, 4096), (1 << 30, 16384)])
def test_small_segments_have_an_entry_for_each_page(data_bytes: int, slots: int) -> None:
    assert Geometry.holding(data_bytes).slots == slots
    assert Geometry.holding(data_bytes, per_slot=PAGE_BYTES).slots == data_bytes // PAGE_BYTES


@pytest.mark.parametrize("wrong", [0, -1, 4095, 1 << 60])
def test_impossible_geometry_is_refused(wrong: int) -> None:
    with pytest.raises(InvalidArgumentError):
        Geometry(wrong, 10)
    with pytest.raises(InvalidArgumentError):
        Geometry(4096, min(wrong, 0))


def test_a_tiny_file_is_refused() -> None:
    with pytest.raises(InvalidArgumentError):
        Geometry.within(8192)


def test_the_header_comes_back(segment: Segment) -> None:
    again = Segment.open(segment.path, writable=False)
    assert again.header == segment.header
    assert not again.writable
    again.close()


@pytest.mark.parametrize("at", [0, 9, 16, 40, 4000, 4095])
def test_a_damaged_header_is_refused(segment: Segment, at: int) -> None:
    with Path(segment.path).open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 0x40]))
    with pytest.raises(InvalidArgumentError):
        Segment.open(segment.path)


def test_a_file_cut_short_is_refused(segment: Segment, tmp_path: Path) -> None:
    short = tmp_path / "short.seg"
    short.write_bytes(Path(segment.path).read_bytes()[: 2 * MIB])
    with pytest.raises(InvalidArgumentError):
        Segment.open(short)
    (tmp_path / "empty.seg").touch()
    with pytest.raises(InvalidArgumentError):
        Segment.open(tmp_path / "empty.seg")


def test_one_owner_at_a_time(segment: Segment) -> None:
    with pytest.raises(TransferError):
        Segment.open(segment.path, own=True)
    segment.close()
    again = Segment.open(segment.path, own=True)
    again.close()


def test_a_dead_process_owns_nothing(tmp_path: Path) -> None:
    path = tmp_path / "dead.seg"
    code = (
        "import os, sys\n"
        "from moonpool.transport import layout\n"
        "from moonpool.transport.segment import Segment\n"
        "header = layout.new_header('n', 's', layout.Geometry.holding(1 << 20))\n"
        "segment = Segment.create(sys.argv[1], header)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], check=False, timeout=60)
    assert done.returncode == -9
    Segment.open(path, own=True).close()


def test_making_it_twice_is_refused(segment: Segment) -> None:
    with pytest.raises(FileExistsError):
        Segment.create(segment.path, segment.header)


def test_what_was_put_is_found(segment: Segment) -> None:
    put(segment, 30)
    found = segment.scan(verify=True)
    assert [f.key for f in found.found] == keys(30)
    assert found.generation_max == 129
    assert found.torn == 0


def test_what_was_only_begun_is_told_apart(segment: Segment) -> None:
    put(segment, 3)
    where = places([5000], 500, base=MIB, index=7)
    assert not segment.begin(where, keys(1), []).any()
    found = segment.scan(reset=True)
    assert (len(found.found), found.torn, found.generation_max) == (3, 0, 500)
    assert [(f.index, f.offset, f.writing) for f in found.writing] == [(7, MIB, True)]
    assert not any(f.writing for f in found.found)


@pytest.mark.parametrize("count", [1, 30])
def test_what_an_earlier_master_granted_is_not_begun_any_more(segment: Segment, count: int) -> None:
    put(segment, 2, generation=100)
    sizes = [5000] * count
    segment.raise_floor(1000)
    late = places(sizes, 1001 - count, base=MIB, index=5)
    assert segment.begin(late, keys(count), []).tolist() == [-700] * count
    assert segment.scan().writing == []
    assert not segment.begin(places(sizes, 1001, base=MIB, index=5), keys(count), []).any()
    segment.raise_floor(2000)
    assert not segment.seal(
        places(sizes, 1001, base=MIB, index=5), np.zeros(count, np.uint64)
    ).any()
    assert [f.generation for f in segment.scan().found if f.index < 2] == [100, 101]


def test_the_floor_takes_no_entry_from_objects_of_earlier_versions(segment: Segment) -> None:
    last = segment.geometry.slots - 1
    assert segment.slots == last
    # A file of an earlier version may have an object there, or a free entry.
    segment.views().floor[0] = layout.FREE
    assert segment.slots == last + 1
    assert not segment.begin(places([5000], 7, index=last), keys(1), []).any()
    segment.raise_floor(1000)
    assert not segment.begin(places([5000], 8, base=MIB, index=3), keys(1), []).any()
    assert [each.index for each in segment.scan().writing] == [3, last]


@pytest.mark.parametrize("digests", [False, True])
@pytest.mark.parametrize("sealed", [False, True])
def test_what_lies_in_a_newer_ones_span_was_evicted(
    segment: Segment, sealed: bool, digests: bool
) -> None:
    """Its bytes are whole, but the span is cut otherwise now."""
    names: list[bytes] = (
        [pack(bytes([i]) * DIGEST_BYTES, b"space") for i in (1, 2)] if digests else list(keys(2))
    )
    older = places([5000], 5, index=0)
    newer = places([9000], 6, base=2 * 12288, index=1)
    assert not segment.begin(older, names[:1], []).any()
    assert not segment.seal(older, np.array([77], np.uint64)).any()
    assert segment.scan(pack=True).count == 1
    assert not segment.begin(newer, names[1:], []).any()
    if sealed:
        assert not segment.seal(newer, np.array([78], np.uint64)).any()
    found = segment.scan(pack=True)
    objects = [*found.found, *(each for some in found.digests for each in some.found())]
    assert [each.key for each in objects] == (names[1:] if sealed else [])
    assert [each.index for each in found.writing] == ([] if sealed else [1])
    assert (found.count, found.torn) == (int(sealed), 1)


@pytest.mark.parametrize("at", range(0, 248, 9))
def test_a_torn_entry_is_never_taken_for_committed(segment: Segment, at: int) -> None:
    put(segment, 2)
    segment.views().table[at] ^= 0x55
    assert [f.index for f in segment.scan(reset=True).found] == [1]
    assert segment.scan().torn == 0


@pytest.mark.parametrize("cut", range(0, 256, 8))
def test_a_half_written_commit_is_not_one(segment: Segment, cut: int) -> None:
    """Any mix of the entry before and after a commit, except for the whole new one."""
    where = places([5000], 5)
    assert not segment.begin(where, keys(1), []).any()
    before = bytes(segment.views().table[:256])
    assert not segment.seal(where, np.array([77], np.uint64)).any()
    after = bytes(segment.views().table[:256])
    for mixed in (before[:cut] + after[cut:], after[:cut] + before[cut:]):
        segment.views().table[:256] = mixed
        assert len(segment.scan().found) == (mixed == after)
        assert len(segment.scan().writing) == (mixed == before)


def test_a_page_of_another_owner_makes_an_object_gone(segment: Segment) -> None:
    put(segment, 3)
    segment.views().owners[1] = 9999
    assert [f.index for f in segment.scan().found] == [1, 2]
    assert segment.scan().generation_max == 9999


def test_a_payload_that_changed_is_not_found_when_verified(segment: Segment) -> None:
    put(segment, 20)
    segment.data()[100] ^= 1
    assert len(segment.scan().found) == 20
    assert len(segment.scan(verify=True).found) == 19


def test_seal_needs_begin(segment: Segment) -> None:
    where = places([100] * 20, 5)
    assert segment.seal(where, where.checksums).tolist() == [-700] * 20
    assert not segment.begin(where, keys(20), []).any()
    newer = places([100], 99)
    assert not segment.begin(newer, keys(1), []).any()
    assert segment.seal(where, where.checksums).tolist() == [-700] + [0] * 19


def test_drop_frees_only_what_is_unchanged(segment: Segment) -> None:
    put(segment, 4)
    beyond = segment.geometry.slots
    dropped = segment.drop([0, 1, 2, -1, beyond, 2**70], [100, 7, 102, 100, 100, 2**70])
    assert dropped == 2
    assert [f.index for f in segment.scan().found] == [1, 3]
    assert segment.drop([], []) == 0


def test_who_located_what_was_disowned_does_not_read_it(segment: Segment) -> None:
    put(segment, 3)
    where = places([5000] * 3, 100)
    # The second is of another generation by now: it is left alone.
    segment.disown(where.offsets[:2].tolist(), [100, 99])
    read = ShmTransport(segment).read(where, batch(0, [5000] * 3).pieces)
    assert read.tolist() == [NotFoundError.code, 0, 0]
    assert [found.index for found in segment.scan(reset=True).found] == [1, 2]


def test_holes_stay_holes(segment: Segment) -> None:
    put(segment, 2)
    before = Path(segment.path).stat().st_blocks
    segment.scan(verify=True, reset=True)
    assert Path(segment.path).stat().st_blocks == before
    assert before * 512 < MIB


def test_after_close_nothing_works(segment: Segment) -> None:
    parts = segment.parts()
    segment.close()
    for call in (segment.parts, segment.views, segment.data, segment.scan):
        with pytest.raises(TransferError):
            call()
    assert parts.memory[:8].tobytes() == layout.MAGIC
    segment.close()


def test_anonymous_memory_is_a_segment_too() -> None:
    segment = Segment.anonymous(MIB)
    put(segment, 3)
    assert len(segment.scan(verify=True).found) == 3
    segment.close()


def test_hosts_are_told_apart(tmp_path: Path) -> None:
    here = tmp_path / "a"
    (here / "node").mkdir(parents=True)
    path = here / "node" / "x.seg"
    assert not shares_memory(host_identity(here), str(path))
    path.touch()
    assert shares_memory(host_identity(here), str(path))
    (tmp_path / "b").mkdir()
    assert host_identity(tmp_path / "b") != host_identity(here)
    assert not shares_memory(host_identity(tmp_path / "b"), str(path))
    assert not shares_memory("", str(path))
    assert not shares_memory(host_identity(here), "x.seg")
    assert host_identity(tmp_path / "none") == ""


def test_owners_that_no_master_has_made_are_damage(segment: Segment) -> None:
    written = ShmTransport(segment).write(places([5000]), batch(1, [5000]).pieces, keys(1), [])
    assert written.codes.tolist() == [0]
    real = segment.scan().generation_max
    pages = segment.parts().owners.pages
    pages[40:44] = 2**63 + 5
    assert segment.scan().generation_max == real
    assert pages[40] == 2**63 + 5  # looked at only
    assert segment.scan(reset=True).generation_max == real
    assert not pages[40:44].any()
    assert [found.generation for found in segment.scan().found] == [1]
