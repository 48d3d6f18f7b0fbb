"""A node that stops reading, lies or dies while a client writes to it over TCP."""

import contextlib
import struct
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import xxhash

from moonpool import Store
from moonpool.errors import MoonpoolError
from tests.adversarial.fake_node import FakeNode, Talk
from tests.adversarial.harness import Cluster, eventually
from tests.adversarial.leftovers import descriptors, nothing_left, within
from tests.adversarial.test_bad_reads import ENDS
from tests.adversarial.test_hostile import data_frame
from tests.adversarial.values import MIB, value_of

SIZES = (5_000, 300_001, 2 * MIB + 5, 70_000) * 3
KEYS = [f"put-{i}" for i in range(len(SIZES))]
VALUES = [value_of(key, 0, size) for key, size in zip(KEYS, SIZES, strict=True)]
TIMEOUT_S = 0.3


def sizes_of(request: Any) -> list[int]:
    """Return the sizes of the objects that a WriteBatch announces."""
    assert request[0] == "WriteBatch", request[0]
    return [size for (size,) in struct.iter_unpack("<Q", request[4])]


def received(talk: Talk, request: Any) -> bytes:
    """Take the payloads and the tail; return the checksums of what came."""
    found = b"".join(
        struct.pack("<Q", xxhash.xxh3_64_intdigest(talk.read(size))) for size in sizes_of(request)
    )
    assert talk.hear()[0] == "WriteTail"
    return found


def stop(talk: Talk, request: Any, *, where: str, end: str) -> None:
    """Take a part of a write and end as told."""
    total = sum(sizes_of(request))
    if where in ("at the answer", "in the answer"):
        sums = received(talk, request)
        answer = data_frame(["WriteDone", bytes(len(sums)), sums])
        talk.send(answer[: 0 if where == "at the answer" else len(answer) - 1])
    else:
        talk.read({"at once": 0, "after one byte": 1, "in the middle": total // 2,
                   "before the last byte": total - 1, "before the tail": total}[where])  # fmt: skip
    ENDS[end](talk)


STOPS = (
    "at once", "after one byte", "in the middle", "before the last byte", "before the tail",
    "at the answer", "in the answer",
)  # fmt: skip


def sip(talk: Talk, request: Any) -> None:
    """Read a little at a time: no send ever waits long."""
    for _ in range(sum(sizes_of(request))):
        talk.read(1000)
        if talk.node.over.wait(0.02):
            talk.hang_up()


def answer(talk: Talk, request: Any, codes: bytes | None, sums: bytes | None) -> None:
    """Take the write as it should be, and say something else about it."""
    right = received(talk, request)
    talk.say("WriteDone", bytes(len(right)) if codes is None else codes * (len(right) // 8),
             right if sums is None else sums * (len(right) // 8))  # fmt: skip


def early(talk: Talk, _: Any, message: list[object], end: str) -> None:
    """Answer before anything was taken."""
    talk.say(*message)
    ENDS[end](talk)


def flood(talk: Talk, _: Any) -> None:
    """Answer without end, and read nothing."""
    talk.flood()


LIES: dict[str, Any] = {
    "sips": sip,
    "floods": flood,
    "no codes": partial(answer, codes=b"", sums=None),
    "half codes": partial(answer, codes=b"\0\0\0\0", sums=None),
    "too many codes": partial(answer, codes=bytes(16), sums=None),
    "codes above 0": partial(answer, codes=struct.pack("<q", 5), sums=None),
    "refused slots": partial(answer, codes=struct.pack("<q", -700), sums=None),
    "no checksums": partial(answer, codes=None, sums=b""),
    "wrong checksums": partial(answer, codes=None, sums=b"wrong..."),
    "garbage at once": partial(early, message=["Rubbish", 1], end="stall"),
    "refused and open": partial(early, message=["Refused", -601, "no"], end="stall"),
    "refused and closed": partial(early, message=["Refused", -601, "no"], end="close"),
    "refused and reset": partial(early, message=["Refused", -601, "no"], end="reset"),
    "done at once, wrongly": partial(early, message=["WriteDone", b"", b""], end="stall"),
}


@contextlib.contextmanager
def writing(cluster: Cluster, behave: Any) -> Iterator[tuple[Store, FakeNode]]:
    """Return a store in whose pool a fake node takes puts beside the real one."""
    store = Store.connect(
        cluster.address, transports=("tcp",), timeout_s=TIMEOUT_S, put_timeout_s=1.0
    )
    with contextlib.closing(store):
        fake = FakeNode(cluster, "taker", behave, mib=64, buffer=1 << 16)
        with contextlib.closing(fake):
            fake.announce(objects=False, ready=True)
            yield store, fake
        eventually(lambda: len(store.status().segments) == 1, 5, "the fake is forgotten")
        eventually(lambda: store.status().puts_in_progress == 0, 5, "no put is left")


def put_all(store: Store, fake: FakeNode, keys: list[str] = KEYS) -> list[int]:
    """Put the batch; what is said to be there must be, what is not must not."""
    with within(5.0):
        codes = store.put_batch(keys, VALUES)
    assert fake.requests, "the fake node was not asked; the test shows nothing"
    for key, value, code, read in zip(keys, VALUES, codes, store.get_batch(keys), strict=True):
        assert read == (value if code == 0 else None), (key, code)
    return codes


def check(codes: list[int]) -> None:
    """Check that some objects went well and others failed by a known code."""
    assert set(codes) <= {0, -200, -700, -800, -801}, codes
    assert 0 in codes, codes


def repeat(store: Store, codes: list[int]) -> None:
    """Put what failed once more, now that the fake node is gone."""
    again = store.put_batch(KEYS, VALUES)
    assert [a for a, code in zip(again, codes, strict=True) if code] == [0] * np.count_nonzero(
        codes
    )
    assert store.get_batch(KEYS) == VALUES


@pytest.fixture(autouse=True)
def empty(shared: Cluster) -> Iterator[None]:
    """Let every test begin with an empty pool, and leave no descriptor or thread behind."""
    shared.stores[0].remove_all(force=True)
    with nothing_left():
        yield


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("where", STOPS)
def test_a_node_that_ends_in_the_middle_of_a_write(shared: Cluster, where: str, end: str) -> None:
    with writing(shared, partial(stop, where=where, end=end)) as (store, fake):
        codes = put_all(store, fake)
        check(codes)
    repeat_with(shared, codes)


@pytest.mark.parametrize("kind", LIES)
def test_a_node_that_answers_a_write_with_what_cannot_be(shared: Cluster, kind: str) -> None:
    with writing(shared, LIES[kind]) as (store, fake):
        codes = put_all(store, fake)
        check(codes)
    repeat_with(shared, codes)


def repeat_with(cluster: Cluster, codes: list[int]) -> None:
    """Repeat with another client."""
    with Store.connect(cluster.address, transports=("tcp",)) as store:
        repeat(store, codes)


@pytest.mark.parametrize("where", ["in the middle", "at the answer"])
def test_single_puts_to_a_bad_node_are_typed_errors(shared: Cluster, where: str) -> None:
    failed = 0
    with writing(shared, partial(stop, where=where, end="stall")) as (store, _):
        for i in range(6):
            value = value_of(f"one-{i}", 0, MIB)
            try:
                with within(3.0):
                    store.put(f"one-{i}", value)
            except MoonpoolError:
                failed += 1
                assert not store.exists(f"one-{i}")
            else:
                assert store.get(f"one-{i}") == value
    assert failed < 6, "the real node took nothing"


def test_failing_again_and_again_leaves_no_descriptors_behind(shared: Cluster) -> None:
    counts, behave = [], partial(stop, where="in the middle", end="reset")
    with writing(shared, behave) as (store, _):
        for i in range(4):
            fake = FakeNode(shared, f"taker{i}", behave, mib=64)
            with contextlib.closing(fake):
                fake.announce(objects=False, ready=True)
                keys = [f"{i}-{key}" for key in KEYS]
                check(put_all(store, fake, keys))
            store.remove_batch(keys, force=True)
            counts.append(len(descriptors()))
        eventually(lambda: len(descriptors()) <= counts[0] + 1, 3, f"no growth: {counts}")
