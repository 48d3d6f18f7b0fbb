"""What a table holds, told as arrays of digests: the same objects as one by one."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from moonpool.core.master import MasterConfig, MasterState
from moonpool.core.messages import Found, Mount, Mounted, SegmentInfo
from moonpool.node.session import generations_of, pieces
from moonpool.transport.base import Places
from moonpool.transport.digests import NAMESPACES_MAX
from moonpool.transport.layout import Geometry, new_header
from moonpool.transport.segment import Segment

COUNT = 300


def some_key(chance: random.Random, namespaces: list[bytes]) -> bytes:
    namespace = chance.choice(namespaces)
    width = 16 if chance.random() < 0.8 else chance.choice([1, 15, 17, 60, 200])
    name = chance.randbytes(width - 1) + b"\1"
    if chance.random() < 0.1:
        name = chance.randbytes(14) + b"\0\0"  # what NumPy's texts would lose
    if chance.random() < 0.03:
        name = bytes(16)  # what stands for no parent
    return bytes([len(namespace)]) + namespace + name


def filled(folder: Path, seed: int) -> tuple[Segment, dict[bytes, bytes]]:
    chance = random.Random(seed)
    namespaces = [chance.randbytes(size) for size in (0, 1, 8, 16, 40)] + [
        chance.randbytes(12) for _ in range(NAMESPACES_MAX if seed % 2 else 0)
    ]
    shape = Geometry.within(8 << 20, per_slot=4096)
    segment = Segment.create(folder / "s.seg", new_header("n", "s", shape))
    parents: dict[bytes, bytes] = {}
    for _ in range(COUNT):
        key = some_key(chance, namespaces)
        parents[key] = chance.choice([b"", *list(parents)[-3:]])
    keys = list(parents)
    n = np.arange(len(keys), dtype=np.int64)
    generations = np.array(chance.sample(range(1, 10_000), len(keys)), np.uint64)
    sizes = np.full(len(keys), 100, np.uint64)
    none = np.zeros(len(keys), np.uint64)
    places = Places(
        n, (n * 4096).astype(np.uint64), sizes, none + np.uint64(4096), generations, none
    )
    assert not segment.begin(places, keys, list(parents.values())).any()
    assert not segment.seal(places, n.astype(np.uint64)).any()
    return segment, parents


@pytest.mark.parametrize("seed", range(6))
def test_packed_scans_tell_the_same_objects(tmp_path: Path, seed: int) -> None:
    segment, _ = filled(tmp_path, seed)
    plain, packed = segment.scan(), segment.scan(pack=True)
    assert plain.count == packed.count == len(plain.found)
    assert packed.digests
    told = [*packed.found, *(found for each in packed.digests for found in each.found())]
    by_index = sorted(told, key=lambda found: found.index)
    assert by_index == sorted(plain.found, key=lambda found: found.index)
    segment.close()


@pytest.mark.parametrize("version", [1, 2])
def test_masters_of_either_version_learn_all(tmp_path: Path, version: int) -> None:
    segment, parents = filled(tmp_path, 3)
    state = MasterState(MasterConfig(), 0)
    shape = segment.geometry
    info = SegmentInfo("s", "n", "h", "a:1", "/p", shape.data_bytes, shape.slots)
    mounted = state.handle(Mount(info), "n", 0.0).reply
    assert isinstance(mounted, Mounted)
    told: dict[int, int] = {}
    for piece in pieces(segment.scan(pack=True), mounted.handle, version):
        state.handle(piece, "n", 0.0)
        told |= generations_of(piece)
    state.validate_state()
    assert {each.key for each in state.state.index} == set(parents)
    known = {found.index: found.generation for found in segment.scan().found}
    assert told == known
    for each in state.state.index:
        kept = parents[each.key] if len(parents[each.key]) <= 64 else b""
        assert each.parent_key == kept
    segment.close()


def test_found_takes_part_in_the_packed_columns() -> None:
    assert {"size", "capacity", "checksum", "generation", "index", "offset"} < set(
        Found.__struct_fields__
    )
