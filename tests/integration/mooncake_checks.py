"""Runs in a process of its own: what a Store does over a real Mooncake cluster.

``python -m tests.integration.mooncake_checks NAME`` prints nothing and ends with 0, or fails.
"""

from __future__ import annotations

import sys
import threading
import time

import numpy as np
import numpy.typing as npt
import pytest

from moonpool import Store
from moonpool.client.memory import parts, span_of, whole
from moonpool.core.keys import pack
from moonpool.errors import (
    AlreadyExistsError,
    BufferTooSmallError,
    MasterUnreachableError,
    NotFoundError,
    NotSupportedError,
)
from moonpool.transport.base import Pieces

EXISTS, GONE, MISFIT = AlreadyExistsError.code, NotFoundError.code, BufferTooSmallError.code
NAMESPACE = bytes(range(16))


def block(number: int) -> bytes:
    return pack(number.to_bytes(16, "big"), NAMESPACE)


def one_object(store: Store) -> None:
    assert store.put("greeting", b"hello") is True
    assert store.put("greeting", b"other") is False
    assert store.get("greeting") == b"hello"
    assert store.exists("greeting")
    assert store.size("greeting") == 5
    assert store.stat("greeting").segments
    room = bytearray(10)
    assert store.get_into("greeting", room) == 5
    assert bytes(room[:5]) == b"hello"
    with pytest.raises(BufferTooSmallError):
        store.get_into("greeting", bytearray(3))
    with pytest.raises(NotFoundError):
        store.get("none")
    store.remove("greeting", force=True)
    assert not store.exists("greeting")
    with pytest.raises(NotFoundError):
        store.remove("greeting")


def names(store: Store) -> None:
    odd = b"\xff\x00odd"
    assert store.put(pack(odd), b"1")
    assert store.put("hex:41", b"2")
    assert store.put("päth/with space", b"3")
    assert store.put(block(1), b"4")
    listed = {bytes(each.key): each.size for each in store.list()}
    assert set(listed) >= {pack(odd), pack(b"hex:41"), pack("päth/with space".encode()), block(1)}
    assert [each.size for each in store.list(namespace=NAMESPACE)] == [1]
    assert [each.key for each in store.list("päth")] == [pack("päth/with space".encode())]
    assert store.get(pack(odd)) == b"1"
    assert store.remove_all("päth", force=True) == 1
    assert store.remove_all(force=True) >= 3
    assert list(store.list()) == []


def batches(store: Store) -> None:
    keys = [f"b{i}" for i in range(600)]
    values = [bytes([i % 251]) * (100 + i) for i in range(600)]
    assert store.put_batch(keys, values) == [0] * 600
    assert store.put_batch(keys[:2], values[:2]) == [EXISTS] * 2
    assert store.get_batch([*keys, "none"]) == [*values, None]
    assert store.get_batch(["b1", "b2", "b1", "b1"]) == [values[1], values[2], values[1], values[1]]
    assert store.put_batch(["twice", "twice"], [b"1", b"2"]) == [0, EXISTS]
    assert store.get("twice") == b"1"
    assert store.exists_batch(["b0", "none"]) == [True, False]
    assert store.remove_batch(["b0", "none"], force=True) == [0, GONE]


def pieces(store: Store) -> None:
    memory = np.arange(64 << 10, dtype=np.uint32).view(np.uint8)
    back = np.zeros_like(memory)
    store.register_buffer(memory)
    store.register_buffer(back)
    half = len(memory) // 2
    out = whole([span_of(memory[:half]), span_of(memory[half:])])
    assert store.put_pieces([block(10), block(11)], out).tolist() == [0, 0]
    room = whole([span_of(back[:half]), span_of(back[half:])])
    assert store.get_pieces([block(10), block(11)], room).tolist() == [0, 0]
    assert (back == memory).all()
    back[:] = 0
    split = parts([span_of(back[:100]), span_of(back[200:half])])
    assert store.get_pieces([block(10)], split).tolist() == [MISFIT]
    wider = parts([span_of(back[:100]), span_of(back[200 : half + 400])])
    assert store.get_pieces([block(10)], wider, exact=True).tolist() == [MISFIT]
    assert not back.any()
    assert store.get_pieces([block(10)], wider).tolist() == [0]
    assert (back[:100] == memory[:100]).all()
    assert (back[200 : half + 100] == memory[100:half]).all()
    assert not back[half + 100 :].any()
    assert store.get_pieces([block(99)], wider).tolist() == [GONE]


def prefixes(store: Store) -> None:
    digests = b"".join(number.to_bytes(16, "big") for number in range(20, 40))
    for number in (23, 27, 29):  # full objects of four blocks, and a tail of two
        store.put(block(number), b"x")
    assert store.match_digests(NAMESPACE, digests, stride=4) == 10
    assert store.match_digests(NAMESPACE, digests[: 9 * 16], stride=4) == 8
    assert store.match_prefix([block(23), block(27), block(5), block(29)]) == 2
    assert store.prefetch(NAMESPACE, digests, stride=4) == 0
    lease = store.hold([block(23), block(27)], 5.0)
    assert lease.count == 2
    store.release(lease)


def what_it_cannot_do(store: Store) -> None:
    assert store.awaits is False
    for call in (lambda: store.changes(0), store.blocks, lambda: store.drain_node("n")):
        with pytest.raises(NotSupportedError):
            call()


def status(store: Store) -> None:
    store.put("s", b"x" * 1000)
    found = store.status()
    assert found.objects >= 1
    assert sum(each.used_bytes for each in found.segments) >= 1000
    assert all(each.ready for each in found.segments)


def large(store: Store) -> None:
    """More than the client's own buffer, and a batch that the wheel cannot take at once."""
    value = np.random.default_rng(1).bytes(66 << 20)
    assert store.put("large", value)
    assert store.get("large") == value
    store.remove("large", force=True)
    keys = [block(1000 + i) for i in range(32)]
    memory = np.random.default_rng(2).integers(0, 255, 32 * 61 * (36 << 10), np.uint8)
    back = np.zeros_like(memory)
    store.register_buffer(memory)
    store.register_buffer(back)
    assert store.put_pieces(keys, _scattered(memory)).tolist() == [0] * 32
    assert store.get_pieces(keys, _scattered(back)).tolist() == [0] * 32
    assert (memory == back).all()


def _scattered(memory: npt.NDArray[np.uint8]) -> Pieces:
    at = np.arange(32 * 61, dtype=np.uint64) * np.uint64(36 << 10) + np.uint64(memory.ctypes.data)
    lengths = np.full(32 * 61, 36 << 10, np.uint64)
    return Pieces(at, lengths, np.arange(33, dtype=np.int64) * 61)


def closing(store: Store) -> None:
    """Calls beside and behind close() fail; they do not crash the process."""
    failed: list[Exception] = []

    def ask() -> None:
        try:
            while True:
                store.exists("x")
        except MasterUnreachableError as error:
            failed.append(error)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    time.sleep(0.1)
    store.close()
    for thread in threads:
        thread.join(30)
    assert len(failed) == 4
    store.close()
    with pytest.raises(MasterUnreachableError):
        store.put("x", b"y")


CHECKS = {
    check.__name__: check
    for check in (
        *(one_object, names, batches, pieces, prefixes, what_it_cannot_do, status, large, closing),
    )
}

if __name__ == "__main__":
    with Store.connect(engine="mooncake") as opened:
        CHECKS[sys.argv[1]](opened)
