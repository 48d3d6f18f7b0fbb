from __future__ import annotations

import hashlib
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moonpool.core.keys import split
from moonpool.vllm import objects
from tests.unit.vllm.fakes import hashes_of


@pytest.mark.parametrize(
    ("first", "last", "stride", "ends"),
    [
        (0, 4, 2, [2, 4]),
        (0, 5, 2, [2, 4, 5]),
        (3, 8, 4, [4, 8]),
        (4, 7, 4, [7]),
        (5, 6, 4, [6]),
        (0, 3, 1, [1, 2, 3]),
        (4, 4, 4, []),
        (5, 5, 4, []),
        (0, 0, 4, []),
    ],
)
def test_the_ends_of_the_objects_that_cover_a_range(
    first: int, last: int, stride: int, ends: list[int]
) -> None:
    assert objects.ends_between(first, last, stride).tolist() == ends


@given(st.integers(0, 200), st.integers(0, 200), st.integers(1, 17))
def test_objects_cover_the_range_without_gap_or_overlap(first: int, more: int, stride: int) -> None:
    last = first + more
    ends = objects.ends_between(first, last, stride)
    starts = objects.starts_of(ends, stride)
    if more:
        assert starts[0] <= first
        assert first - starts[0] < stride
        assert ends[-1] == last
    assert starts[1:].tolist() == ends[:-1].tolist()
    assert all(1 <= end - start <= stride for start, end in zip(starts, ends, strict=True))


def test_a_name_is_the_first_half_of_the_last_blocks_hash() -> None:
    hashes = hashes_of(range(20), 4)
    names = objects.names_at(hashes, np.array([2, 4, 5], np.int32))
    assert objects.split_names(names) == [hashes[1][:16], hashes[3][:16], hashes[4][:16]]
    key = objects.keys_of(b"n" * 16, names)[2]
    assert split(key) == (b"n" * 16, hashes[4][:16])
    assert objects.pack_digests(hashes) == b"".join(h[:16] for h in hashes)


def test_parents_are_the_objects_before() -> None:
    hashes = hashes_of(range(20), 4)
    names = objects.parent_names_at(hashes, np.array([2, 4, 5], np.int32), 2)
    parents = objects.parents_of(b"n" * 16, names)
    assert parents[0] is None
    assert [split(parent or b"")[1] for parent in parents[1:]] == [hashes[1][:16], hashes[3][:16]]


def test_names_follow_the_hash_that_vllm_documents() -> None:
    """The vector was seen in three models' requests: vLLM 0.32, sha256, block of 128 tokens."""

    def digest(content: object) -> bytes:
        return hashlib.sha256(pickle.dumps(content, protocol=5)).digest()

    tokens = tuple((i * 7) % 200 + 3 for i in range(128))
    first = digest((digest("vllm-none-hash"), tokens, None))
    assert first.hex() == "0db0828314ff9bb9ee27d0d4170d37d870c6cf026ce2a408f9f9cb4e7e05d524"
    assert objects.digest_of(first).hex() == "0db0828314ff9bb9ee27d0d4170d37d8"
