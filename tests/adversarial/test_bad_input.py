"""What the API says to bad input: a typed error, and nothing changed."""

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

from moonpool import Store
from moonpool.errors import (
    BufferAlreadyRegisteredError,
    BufferNotRegisteredError,
    BufferTooSmallError,
    ConfigError,
    InvalidArgumentError,
    InvalidKeyError,
    MasterUnreachableError,
    MoonpoolError,
    NotFoundError,
)
from tests.adversarial.conftest import MakeCluster
from tests.adversarial.harness import Cluster, Daemon, eventually
from tests.integration.processes import freeze

TYPED = (MoonpoolError, TypeError)
BAD_KEYS: list[Any] = [
    "",
    b"",
    b"\x00",
    b"\x05ab",
    b"\xffabc",
    b"\x41" + b"n" * 65 + b"k",
    b"raw bytes that are no packed key",
    "x" * 4097,
    "é" * 2049,
    b"\x00" + b"x" * 4097,
    "\ud800",
    b"\x10" + b"n" * 16,
]
NOT_KEYS: list[Any] = [None, 7, 1.5, ["k"], object()]


def state(store: Store) -> tuple[int, int, int, int]:
    """Return what may not change: objects, bytes, puts and leases."""
    status = store.status()
    used = sum(s.used_bytes + s.pending_bytes for s in status.segments)
    return status.objects, used, status.puts_in_progress, status.leases


@contextlib.contextmanager
def refused(what: str, error: type[Exception] | tuple[type[Exception], ...]) -> Iterator[None]:
    """Expect an error; say what was taken if there is none."""
    try:
        yield
    except error:
        return
    pytest.fail(f"{what} was taken")


def verbs(store: Store, key: Any) -> list[Callable[[], object]]:
    """Return every call that takes a key."""
    return [
        lambda: store.put(key, b"v"),
        lambda: store.put("fine", b"v", parent=key),
        lambda: store.put_from(key, b"vvv", 2),
        lambda: store.put_from_parts(key, [b"v"]),
        lambda: store.put_batch(["fine", key], [b"v", b"v"]),
        lambda: store.put_batch(["fine"], [b"v"], parents=[key]),
        lambda: store.get(key),
        lambda: store.get_into(key, bytearray(9)),
        lambda: store.get_into_parts(key, [bytearray(9)]),
        lambda: store.get_batch(["fine", key]),
        lambda: store.exists(key),
        lambda: store.exists_batch([key]),
        lambda: store.match_prefix(["fine", key]),
        lambda: store.size(key),
        lambda: store.stat(key),
        lambda: store.remove(key),
        lambda: store.remove_batch([key]),
        lambda: store.hold([key], 1.0),
    ]


@pytest.mark.parametrize("key", BAD_KEYS, ids=[repr(k[:12]) for k in BAD_KEYS])
def test_bad_keys_are_refused_by_every_verb(store: Store, key: Any) -> None:
    before = state(store)
    for i, verb in enumerate(verbs(store, key)):
        if key in ("", b"") and i in (1, 5):
            continue  # an empty parent may mean none
        with refused(f"verb {i}", InvalidKeyError):
            verb()
    store.remove_batch(["fine"])
    assert state(store) == before


@pytest.mark.parametrize("key", NOT_KEYS, ids=repr)
def test_what_is_no_key_at_all_is_a_typed_error(store: Store, key: Any) -> None:
    before = state(store)
    for i, verb in enumerate(verbs(store, key)):
        if key is None and i in (1, 5):
            continue
        with pytest.raises(TYPED):
            verb()
    assert state(store) == before


def test_values_that_are_no_buffers(store: Store) -> None:
    before = state(store)
    for value in (b"", bytearray(), memoryview(b"")):
        with pytest.raises(InvalidArgumentError):
            store.put("empty", value)
    odd: list[Any] = ["text", None, 5, [b"x"], object()]
    for value in odd:
        with pytest.raises(TYPED):
            store.put("odd", value)
    with refused("an array of Python objects", TYPED):
        store.put("objects", np.array([object()]))
    with pytest.raises(InvalidArgumentError):
        store.put_batch(["good", "empty"], [b"x", b""])
    with pytest.raises(InvalidArgumentError):
        store.put_from_parts("parts", [b"", b""])
    with pytest.raises(InvalidArgumentError):
        store.put_from_parts("parts", [])
    assert state(store) == before


def test_buffer_too_small_and_nothing_written(store: Store) -> None:
    store.put("big", b"x" * 10_000)
    for size in (0, 1, 9_999):
        buffer = bytearray(b"\xa5" * size)
        with pytest.raises(BufferTooSmallError):
            store.get_into("big", buffer)
        assert buffer == b"\xa5" * size
        parts = [bytearray(b"\xa5" * (size // 2)), bytearray(b"\xa5" * (size - size // 2))]
        with pytest.raises(BufferTooSmallError):
            store.get_into_parts("big", parts)
        assert set(parts[0] + parts[1]) <= {0xA5}
    with pytest.raises(BufferTooSmallError):
        store.get_into_parts("big", [])
    eventually(lambda: store.stat("big").leases == 0, 2, "the failed reads' leases ended")


def test_registration_twice_or_overlapping_is_refused_and_changes_nothing(store: Store) -> None:
    memory = bytearray(10_000)
    at = int(np.frombuffer(memory, np.uint8).ctypes.data)
    store.register_memory(at + 1000, 5000)
    for start, nbytes in (
        (1000, 5000), (0, 1001), (5999, 1), (0, 10_000), (2000, 10), (1000, 1), (500, 5000),
    ):  # fmt: skip
        with refused(f"{start}+{nbytes}", BufferAlreadyRegisteredError):
            store.register_memory(at + start, nbytes)
    with pytest.raises(BufferAlreadyRegisteredError):
        store.register_buffer(memory)
    store.register_memory(at + 6000, 4000)
    store.register_memory(at, 1000)
    for start in (0, 1000, 6000):
        store.unregister_memory(at + start)
    store.register_buffer(memory)
    for start in (1, 1000, 9_999):
        with pytest.raises(BufferNotRegisteredError):
            store.unregister_memory(at + start)
    store.unregister_memory(at)
    for start, nbytes in (
        (at, 0), (at, -1), (-1, 10), (0, 10), (2**64 - 1, 10), (2**64, 10),
        (at, 2**64), (at, 2**64 - 1),
    ):  # fmt: skip
        with refused(f"{start:#x}+{nbytes:#x}", InvalidArgumentError):
            store.register_memory(start, nbytes)


def test_counts_and_sizes_that_make_no_sense(store: Store) -> None:
    before = state(store)
    bad: list[Callable[[], object]] = [
        lambda: store.put_batch(["a", "b"], [b"x"]),
        lambda: store.put_batch(["a"], [b"x", b"y"]),
        lambda: store.put_batch(["a"], [b"x"], parents=["p", "q"]),
        lambda: store.put("a", b"x", replicas=0),
        lambda: store.put("a", b"x", replicas=-1),
        lambda: store.put_from("a", b"xxx", 4),
        lambda: store.put_from("a", b"xxx", -1),
        lambda: store.put_from("a", b"xxx", 0),
        lambda: store.match_digests(b"n" * 16, b"d" * 17),
        lambda: store.match_digests(b"n" * 16, b"d" * 16, stride=0),
        lambda: store.match_digests(b"n" * 16, b"d" * 16, stride=-1),
        lambda: store.match_digests(b"n" * 16, b"d" * 16, digest_bytes=0),
        lambda: store.match_digests(b"n" * 16, b"d" * 16, digest_bytes=-16),
    ]
    for i, call in enumerate(bad):
        with refused(f"call {i}", InvalidArgumentError):
            call()
    assert state(store) == before
    assert store.put_batch([], []) == []
    assert store.get_batch([]) == []
    assert store.exists_batch([]) == []
    assert store.remove_batch([]) == []
    assert store.match_prefix([]) == 0
    assert store.match_digests(b"n" * 16, b"") == 0
    assert store.match_digests(b"n" * 16, b"d" * 16, stride=2**62) == 0


@pytest.mark.parametrize("replicas", [2, 5, 10**9, 2**63, 2**70])
def test_more_replicas_than_segments_is_as_many_as_there_are(store: Store, replicas: int) -> None:
    try:
        assert store.put("many", b"x", replicas=replicas) is True
    except InvalidArgumentError:
        assert replicas > 1000
        assert not store.exists("many")
    else:
        assert store.get("many") == b"x"


def test_things_that_are_not_there(store: Store) -> None:
    for call in (store.get, store.size, store.stat, store.remove):
        with pytest.raises(NotFoundError):
            call("absent")
    with pytest.raises(NotFoundError):
        store.get_into("absent", bytearray(5))
    assert store.remove_batch(["absent"]) == [-704]
    store.release(123_456_789)
    assert store.remove_all("no such prefix") == 0


@pytest.mark.parametrize(
    "address",
    ["", "nohost", "127.0.0.1:", ":", "127.0.0.1:99999", "127.0.0.1:-1", "127.0.0.1:abc",
     "127.0.0.1:0", "a b:50051", "\x00:1", "127.0.0.1:5:5", "no.such.host.invalid:50051"],
)  # fmt: skip
def test_master_addresses_that_cannot_be(address: str) -> None:
    start = time.monotonic()
    with pytest.raises((ConfigError, MasterUnreachableError)) as caught:
        Store.connect(address, timeout_s=1.0)
    assert time.monotonic() - start < 10
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "options",
    [
        {"transports": ()}, {"transports": ("rdma",)},
        {"transports": ("shm", "shm2")}, {"timeout_s": 0}, {"timeout_s": -1.0},
        {"timeout_s": float("nan")}, {"put_timeout_s": float("inf")},
        {"put_timeout_s": -1}, {"lease_s": 0}, {"lease_s": float("nan")}, {"connections": 0},
        {"connections": -4}, {"connections": 10**9}, {"connections": 1.5}, {"name": "a\nb"},
        {"lease_s": 1e12},
    ],
    ids=str,
)  # fmt: skip
def test_options_that_cannot_be_name_key_and_allowed_values(
    shared: Cluster, options: dict[str, Any]
) -> None:
    with pytest.raises((ConfigError, InvalidArgumentError)) as caught:
        Store.connect(shared.address, **options).close()
    assert next(iter(options)) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "capacity",
    ["", "0", "12XB", "-1GB", "1e400GB", "nanGB", "GB", 0, -5, 1.5, None, "1 2MB", 2**70, True],
    ids=repr,
)
def test_local_capacities_that_cannot_be(capacity: Any) -> None:
    with pytest.raises(TYPED):
        Store.local(capacity)


def listed(store: Store) -> object:
    """Return all objects."""
    return list(store.list())


def test_every_verb_after_close_is_a_typed_error(shared: Cluster) -> None:
    for store in (Store.local("16MB"), Store.connect(shared.address)):
        lease = store.hold(["k"], 1.0)
        store.close()
        store.close()
        calls: list[Callable[[], object]] = [
            *verbs(store, "k"),
            store.status,
            partial(listed, store),
            store.remove_all,
        ]
        for i, call in enumerate(calls):
            with refused(f"call {i}", MoonpoolError):
                call()
        with contextlib.suppress(MoonpoolError):
            store.release(lease)


def test_close_while_threads_work(shared: Cluster) -> None:
    for store in (Store.local("32MB"), Store.connect(shared.address)):
        value = bytes(range(256)) * 4096
        strange: list[str] = []

        def work(store: Store = store, strange: list[str] = strange, value: bytes = value) -> None:
            try:
                for i in range(100_000):
                    store.put(f"c{i % 9}", value)
                    if store.get(f"c{i % 9}") != value:
                        strange.append("wrong bytes")
            except MoonpoolError:
                return
            except BaseException as error:  # noqa: BLE001
                strange.append(repr(error))

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        time.sleep(0.3)
        store.close()
        for thread in threads:
            thread.join(10)
        assert not any(thread.is_alive() for thread in threads)
        assert strange == []


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def test_no_master_is_one_typed_error_in_time() -> None:
    start = time.monotonic()
    with pytest.raises(MasterUnreachableError) as caught:
        Store.connect(f"127.0.0.1:{free_port()}", timeout_s=0.5)
    assert time.monotonic() - start < 3
    assert "\n" not in str(caught.value)


def test_store_that_does_not_wait_joins_when_the_master_comes(make_cluster: MakeCluster) -> None:
    cluster = make_cluster([("a", "16MB")])
    cluster.master.end()
    store = Store.connect(cluster.address, timeout_s=0.5, wait=False)
    try:
        start = time.monotonic()
        for _ in range(20):
            with pytest.raises(MoonpoolError):
                store.match_prefix(["k"])
        assert time.monotonic() - start < 5, "calls without a master do not fail fast"
        cluster.start_master()

        def works() -> bool:
            try:
                return store.put("joined", b"x") or store.exists("joined")
            except MoonpoolError:
                return False

        eventually(works, 10, "the store joins")
        assert store.get("joined") == b"x"
    finally:
        store.close()


def test_master_that_hangs_is_an_error_at_the_deadline(make_cluster: MakeCluster) -> None:
    cluster = make_cluster([("a", "16MB")])
    store = cluster.connect(timeout_s=0.5)
    store.put("k", b"x")
    freeze(cluster.master.pid)

    def refused() -> bool:
        try:
            return not store.exists("k")
        except MasterUnreachableError:
            return True

    try:
        for call in (store.get, store.stat):
            start = time.monotonic()
            with pytest.raises(MasterUnreachableError):
                call("k")
            assert time.monotonic() - start < 3
        # Its table in shared memory is believed for a second after its last sign of life.
        eventually(refused, 5, "the table is not believed any more")
        with pytest.raises(MasterUnreachableError):
            store.exists("k")
    finally:
        os.kill(cluster.master.pid, signal.SIGCONT)

    def works() -> bool:
        try:
            return store.get("k") == b"x"
        except MoonpoolError:
            return False

    eventually(works, 5, "works again")


def test_second_node_of_the_same_name_does_not_take_over(make_cluster: MakeCluster) -> None:
    cluster = make_cluster([("a", "16MB")])
    store = cluster.stores[0]
    store.put("k", b"first node's")
    again = Daemon("node", cluster.place, dict(cluster.nodes["a"].options))
    again.spawn()
    try:
        assert again.process is not None
        code = again.process.wait(10)
    finally:
        if again.alive:
            again.end()
    assert code == 2, again.tail()
    assert len(again.tail().strip().splitlines()) == 1, again.tail()
    assert store.get("k") == b"first node's"
    assert cluster.nodes["a"].alive
