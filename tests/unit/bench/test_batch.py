"""Batches: what is typed, where pieces lie, and that wrong bytes are seen."""

import numpy as np
import pytest

from moonpool.bench.batch import Batch, mismatches, random_bytes, size_text, stamp


@pytest.mark.parametrize(
    ("text", "batch"),
    [
        ("512x61x36k", Batch(512, 61, 36 << 10)),
        ("512x1x2M", Batch(512, 1, 2 << 20)),
        ("1 x 1 x 4096", Batch(1, 1, 4096)),
    ],
)
def test_a_batch_is_objects_pieces_and_size(text: str, batch: Batch) -> None:
    assert Batch.parse(text) == batch


@pytest.mark.parametrize("text", ["", "512x61", "0x1x4k", "1x0x4k", "1x1x0", "1x1x7", "1x1x4g"])
def test_what_is_no_batch_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"batch|multiples"):
        Batch.parse(text)


@pytest.mark.parametrize("pieces", [1, 3, 61])
def test_pieces_cover_the_memory_once(pieces: int) -> None:
    batch = Batch(objects=5, pieces=pieces, piece_bytes=64)
    offsets = batch.offsets(seed=3)
    assert offsets.shape == (5, pieces)
    seen = np.zeros(batch.nbytes, np.int64)
    for at in offsets.ravel().tolist():
        seen[at : at + 64] += 1
    assert (seen == 1).all()


def test_pieces_of_an_object_are_scattered() -> None:
    offsets = Batch(objects=16, pieces=4, piece_bytes=64).offsets(seed=1).astype(np.int64)
    assert (np.diff(offsets, axis=1) == 16 * 64).all()
    assert (np.diff(offsets[:, 0]) != 64).any()


def test_wrong_bytes_are_counted() -> None:
    one = random_bytes(1 << 16, seed=1)
    other = one.copy()
    assert mismatches(one, other) == 0
    other[[0, 1, 7_000, (1 << 16) - 1]] ^= 1
    assert mismatches(one, other) == 4


def test_random_bytes_differ_by_seed_and_repeat() -> None:
    one = random_bytes(1 << 12, seed=1)
    assert mismatches(one, random_bytes(1 << 12, seed=1)) == 0
    assert mismatches(one, random_bytes(1 << 12, seed=2)) > 1 << 11


def test_a_stamp_changes_every_page() -> None:
    memory = random_bytes(1 << 14, seed=1)
    before = memory.copy()
    stamp(memory)
    assert (memory.reshape(-1, 4096) != before.reshape(-1, 4096)).any(axis=1).all()


@pytest.mark.parametrize(
    ("nbytes", "text"), [(2 << 20, "2 MiB"), (36 << 10, "36 KiB"), (100, "100 B")]
)
def test_sizes_are_readable(nbytes: int, text: str) -> None:
    assert size_text(nbytes) == text
