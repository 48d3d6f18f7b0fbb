"""Lists of copies, against the same done byte by byte."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from moonpool.gpu.runs import Pinned, Runs, cut, divided, joined, runs_of, steps
from moonpool.transport.base import Pieces

sizes = st.lists(st.integers(0, 9), max_size=12)


def bytes_of(runs: Runs) -> list[tuple[int, int]]:
    """Return (host, device) of every byte."""
    rows = zip(runs.host.tolist(), runs.device.tolist(), runs.sizes.tolist(), strict=True)
    return [(h + i, d + i) for h, d, n in rows for i in range(n)]


def words(values: list[int]) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    return np.array(values, np.uint64)


@st.composite
def some_runs(draw: st.DrawFn) -> Runs:
    lengths = draw(sizes)
    gaps = draw(st.lists(st.integers(0, 2), min_size=len(lengths), max_size=len(lengths)))
    host = np.cumsum([100, *(a + b for a, b in zip(lengths, gaps, strict=True))])[: len(lengths)]
    device = draw(st.permutations([1000 + 10 * i for i in range(len(lengths))]))
    return Runs(host.astype(np.uint64), words(device), words(lengths))


@given(st.lists(sizes, max_size=5), st.integers(0, 3))
@settings(deadline=None)
def test_objects_become_runs(objects: list[list[int]], skip: int) -> None:
    lengths = [n for lengths in objects for n in lengths]
    starts = np.cumsum([0, *map(len, objects)])
    rng = np.random.default_rng(len(lengths))
    addresses = words((1000 + 10 * rng.permutation(len(lengths))).tolist())
    skip = min(skip, len(objects))
    hosts = words([500 + 200 * i for i in range(len(objects) - skip)])
    runs = runs_of(Pieces(addresses, words(lengths), starts[skip:].astype(np.int64)), hosts)
    expected = []
    for i, host in enumerate(hosts.tolist(), skip):
        at = host
        for p in range(int(starts[i]), int(starts[i + 1])):
            device = int(addresses[p])
            expected += [(at + k, device + k) for k in range(lengths[p])]
            at += lengths[p]
    assert bytes_of(runs) == expected
    assert runs.sizes.all()


def test_neighbours_on_both_sides_are_joined() -> None:
    runs = Runs(words([10, 14, 14, 18, 30]), words([50, 54, 54, 59, 72]), words([4, 0, 4, 12, 1]))
    assert joined(runs).sizes.tolist() == [8, 12, 1]
    assert bytes_of(joined(runs)) == bytes_of(runs)


@given(some_runs(), st.lists(st.integers(90, 200), max_size=8, unique=True))
@settings(deadline=None)
def test_cuts(runs: Runs, bounds: list[int]) -> None:
    pieces = cut(runs, runs.host, words(sorted(bounds)))
    assert bytes_of(pieces) == bytes_of(runs)
    for host, n in zip(pieces.host.tolist(), pieces.sizes.tolist(), strict=True):
        assert not [b for b in bounds if host < b < host + n]


@given(some_runs(), st.lists(st.integers(90, 200), max_size=8, unique=True), st.booleans())
@settings(deadline=None)
def test_divided(runs: Runs, bounds: list[int], touching: bool) -> None:
    runs = joined(runs)
    edges = sorted(bounds)
    pairs = list(itertools.pairwise(edges))[:: 1 if touching else 2]
    pinned = Pinned(words([a for a, _ in pairs]), words([b for _, b in pairs]))
    inside, rest = divided(runs, pinned)
    assert sorted(bytes_of(inside) + bytes_of(rest)) == sorted(bytes_of(runs))
    for host, n in zip(inside.host.tolist(), inside.sizes.tolist(), strict=True):
        assert any(a <= host and host + n <= b for a, b in pairs)
    for host, _ in bytes_of(rest):
        assert not any(a <= host < b for a, b in pairs)


@given(some_runs(), st.integers(1, 30))
@settings(deadline=None)
def test_steps(runs: Runs, nbytes: int) -> None:
    runs = joined(runs)
    parts = list(steps(runs, nbytes))
    assert [b for part in parts for b in bytes_of(part)] == bytes_of(runs)
    assert all(part.nbytes == nbytes for part in parts[:-1])
    assert parts[-1].nbytes <= nbytes
