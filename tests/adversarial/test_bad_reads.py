"""A node that stalls, lies, floods or dies while a client reads from it over TCP."""

import contextlib
import random
import struct
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

from moonpool import Store
from moonpool.errors import TransferError
from tests.adversarial.fake_node import FakeNode, Talk
from tests.adversarial.harness import Cluster, eventually
from tests.adversarial.leftovers import descriptors, nothing_left, within
from tests.adversarial.test_hostile import data_frame
from tests.adversarial.test_integrity import CANARY, address_of, pieces_of
from tests.adversarial.values import MIB, value_of

TIMEOUT_S = 0.3
ENDS = {"stall": Talk.stall, "close": Talk.hang_up, "reset": Talk.reset}
GOOD = {f"good-{i}": value_of(f"good-{i}", 0, 70_000 + i) for i in range(6)}


def zeros(request: Any) -> bytes:
    """Return codes of 0 for all objects of a request."""
    return bytes(len(request[3]))


def whole_answer(talk: Talk, request: Any) -> bytes:
    """Return the right answer, head and tail included."""
    head, tail = data_frame(["ReadHead", zeros(request)]), data_frame(["ReadTail", zeros(request)])
    return head + talk.node.payload(request[3]) + tail


def cut(talk: Talk, request: Any, *, where: str, end: str) -> None:
    """Send a part of the right answer and end as told."""
    answer = whole_answer(talk, request)
    head = len(data_frame(["ReadHead", zeros(request)]))
    tail = len(data_frame(["ReadTail", zeros(request)]))
    last = len(answer) - tail
    stops = {
        "before the head": 0, "in the length of the head": 2, "in the head": head - 1,
        "before the payload": head, "after one byte": head + 1, "in the middle": (head + last) // 2,
        "before the last byte": last - 1, "before the tail": last, "in the tail": last + tail - 1,
    }  # fmt: skip
    talk.send(answer[: stops[where]])
    ENDS[end](talk)


STOPS = (
    "before the head", "in the length of the head", "in the head", "before the payload",
    "after one byte", "in the middle", "before the last byte", "before the tail", "in the tail",
)  # fmt: skip


def trickle(talk: Talk, request: Any) -> None:
    """Send the right answer, a byte at a time: no receive ever waits long."""
    for byte in whole_answer(talk, request):
        talk.send(bytes([byte]))
        if talk.node.over.wait(0.02):
            talk.hang_up()


def head_of(talk: Talk, request: Any, codes: bytes) -> None:
    """Answer with other codes and the right payload."""
    talk.say("ReadHead", codes)
    talk.send(talk.node.payload(request[3]))
    talk.say("ReadTail", zeros(request))


def payload_of(talk: Talk, request: Any, how: str) -> None:
    """Answer with a payload that is not the right one."""
    right = talk.node.payload(request[3])
    changed = bytearray(right)
    changed[len(right) // 2] ^= 1
    wrong = {
        "one byte short": right[:-1], "one byte long": right + b"x",
        "a byte flipped": bytes(changed), "zeros": bytes(len(right)), "nothing": b"",
        "shifted": b"x" + right[:-1],
        "shuffled": right[len(right) // 3 :] + right[: len(right) // 3],
    }[how]  # fmt: skip
    talk.say("ReadHead", zeros(request))
    talk.send(wrong)
    talk.say("ReadTail", zeros(request))


def flood(talk: Talk, request: Any, *, after: str) -> None:
    """Send without end, from a point of the right answer on."""
    answer = whole_answer(talk, request)
    head = len(data_frame(["ReadHead", zeros(request)]))
    talk.send(answer[: {"nothing": 0, "the head": head, "the tail": len(answer)}[after]])
    talk.flood()


def says(talk: Talk, _: Any, *, message: bytes, end: str) -> None:
    """Send the same whatever was asked."""
    talk.send(message)
    ENDS[end](talk)


def tail_of(talk: Talk, request: Any, tail: bytes) -> None:
    """Answer rightly, up to the tail."""
    talk.say("ReadHead", zeros(request))
    talk.send(talk.node.payload(request[3]))
    talk.send(tail)
    talk.stall()


ONE = struct.pack("<q", 0)
LIES = {
    "trickle": trickle,
    "too few codes": lambda t, r: head_of(t, r, zeros(r)[:-8]),
    "half a code": lambda t, r: head_of(t, r, zeros(r)[:-1]),
    "too many codes": lambda t, r: head_of(t, r, zeros(r) + ONE * 5),
    "codes above 0": lambda t, r: head_of(t, r, struct.pack("<q", 7) * (len(r[3]) // 8)),
    "codes that nobody knows": lambda t, r: head_of(
        t, r, struct.pack("<q", -(2**62)) * (len(r[3]) // 8)
    ),
    **{
        f"payload: {how}": partial(payload_of, how=how)
        for how in (
            "one byte short", "one byte long", "a byte flipped", "zeros", "nothing", "shifted",
            "shuffled",
        )
    },
    **{f"floods after {after}": partial(flood, after=after) for after in ("nothing", "the head")},
    "garbage": partial(says, message=random.Random(1).randbytes(10_000), end="stall"),
    "a frame of 4 GiB": partial(says, message=b"\xff\xff\xff\xff", end="stall"),
    "a frame of 64 MiB": partial(says, message=struct.pack("<I", 64 * MIB), end="stall"),
    "another answer": partial(says, message=data_frame(["WriteDone", ONE, ONE]), end="stall"),
    "refused": partial(says, message=data_frame(["Refused", -601, "no" * 500]), end="close"),
    "no tail": partial(tail_of, tail=data_frame(["ReadHead", ONE])),
    "a refusal as tail": partial(tail_of, tail=data_frame(["Refused", -800, "late"])),
    "a tail of nothing": partial(tail_of, tail=data_frame(["ReadTail", b""])),
    "overwritten meanwhile": lambda t, r: tail_of(
        t, r, data_frame(["ReadTail", struct.pack("<q", -704) * (len(r[3]) // 8)])
    ),
}  # fmt: skip


class Reading:
    """A store, a fake node that is mounted beside the real one, and memory for a batch of both."""

    def __init__(self, store: Store, fake: FakeNode) -> None:
        self.store, self.fake = store, fake
        good, bad = list(GOOD.items()), list(self.fake.values.items())
        mixed = [good[0], bad[0], good[1], bad[1], good[2], bad[2], *good[3:]]
        self.wanted = dict(mixed)
        self.memory = bytearray()

    def read(self) -> dict[str, int]:
        """Read all objects in one batch; check bytes and the memory beside them; return codes."""
        sizes = [len(value) for value in self.wanted.values()]
        self.memory = bytearray([CANARY]) * (sum(sizes) + 64 * (len(sizes) + 1))
        self.store.register_buffer(self.memory)
        places, at = [], 64
        for size in sizes:
            places.append(at)
            at += size + 64
        start = address_of(self.memory)
        pieces = pieces_of([[(start + a, n)] for a, n in zip(places, sizes, strict=True)])
        with within(4.0):
            codes = self.store.get_pieces(list(self.wanted), pieces).tolist()
        self.store.unregister_buffer(self.memory)
        for value, code, a in zip(self.wanted.values(), codes, places, strict=True):
            if code == 0:
                assert self.memory[a : a + len(value)] == value, "wrong bytes"
        outside = np.ones(len(self.memory), bool)
        for a, n in zip(places, sizes, strict=True):
            outside[a : a + n] = False
        assert (np.frombuffer(self.memory, np.uint8)[outside] == CANARY).all()
        return dict(zip(self.wanted, codes, strict=True))

    def forgotten(self) -> None:
        """Check that the pool works on once the fake node is gone."""
        fakes = list(self.fake.values)
        eventually(lambda: not any(self.store.exists_batch(fakes)), 5, "the fake is forgotten")
        assert self.store.get_batch(list(GOOD)) == list(GOOD.values())
        assert self.store.get_batch(fakes) == [None] * len(fakes)
        self.store.remove_batch(["after"])
        assert self.store.put("after", b"x" * 100_000)
        assert self.store.get("after") == b"x" * 100_000


@contextlib.contextmanager
def reading(cluster: Cluster, behave: Any) -> Iterator[Reading]:
    """Return a Reading; what it opened is closed whatever happens."""
    store = Store.connect(cluster.address, transports=("tcp",), timeout_s=TIMEOUT_S)
    with contextlib.closing(store):
        store.put_batch(list(GOOD), list(GOOD.values()))
        fake = FakeNode(cluster, "liar", behave)
        with contextlib.closing(fake):
            fake.announce(objects=True, ready=False)
            found = Reading(store, fake)
            yield found
        found.forgotten()


def check(codes: dict[str, int], *, some_bad: bool = True, known: bool = True) -> None:
    """Check that only the fake node's objects failed, with known codes."""
    assert [codes[key] for key in GOOD] == [0] * len(GOOD), codes
    bad = [code for key, code in codes.items() if key not in GOOD]
    assert not known or set(bad) <= {0, -704, -707, -800, -801}, codes
    assert not some_bad or min(bad) < 0, codes


@pytest.fixture(autouse=True)
def empty(shared: Cluster) -> Iterator[None]:
    """Let every test begin with an empty pool, and leave no descriptor or thread behind."""
    shared.stores[0].remove_all(force=True)
    with nothing_left():
        yield


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("where", STOPS)
def test_a_node_that_ends_in_the_middle_of_an_answer(shared: Cluster, where: str, end: str) -> None:
    with reading(shared, partial(cut, where=where, end=end)) as found:
        check(found.read())


@pytest.mark.parametrize("kind", LIES)
def test_a_node_that_answers_what_cannot_be(shared: Cluster, kind: str) -> None:
    with reading(shared, LIES[kind]) as found:
        check(found.read(), known=kind != "codes that nobody knows")


def test_what_comes_after_an_answer_is_never_taken_for_the_next_one(shared: Cluster) -> None:
    with reading(shared, partial(flood, after="the tail")) as found:
        for _ in range(3):
            check(found.read(), some_bad=False)


@pytest.mark.parametrize("where", ["before the head", "in the middle"])
def test_single_reads_from_a_bad_node_are_typed_errors(shared: Cluster, where: str) -> None:
    with reading(shared, partial(cut, where=where, end="stall")) as found:
        key, value = next(iter(found.fake.values.items()))
        with within(1.0), pytest.raises(TransferError):
            found.store.get(key)
        with within(1.0), pytest.raises(TransferError):
            found.store.get_into(key, bytearray(len(value)))


def test_failing_again_and_again_leaves_no_descriptors_behind(shared: Cluster) -> None:
    counts = []
    with reading(shared, partial(cut, where="in the middle", end="close")) as found:
        for _ in range(12):
            check(found.read())
            counts.append(len(descriptors()))
        # The fake node's own ends are of this process too, and close a moment later.
        eventually(lambda: len(descriptors()) <= counts[0] + 2, 3, f"no growth: {counts}")


def test_many_bad_nodes_in_one_batch_cost_one_deadline(shared: Cluster) -> None:
    with contextlib.ExitStack() as stack:
        store = Store.connect(shared.address, transports=("tcp",), timeout_s=0.5)
        stack.enter_context(contextlib.closing(store))
        store.put_batch(list(GOOD), list(GOOD.values()))
        keys = []
        for i, where in enumerate(STOPS):
            fake = FakeNode(shared, f"bad{i}", partial(cut, where=where, end="stall"))
            stack.enter_context(contextlib.closing(fake))
            fake.announce(objects=True, ready=False)
            keys += list(fake.values)
        with within(3.0):
            values = store.get_batch([*keys, *GOOD])
        assert values == [None] * len(keys) + list(GOOD.values())
