"""Hostile bytes to every port, while a good client goes on unharmed."""

import contextlib
import os
import random
import socket
import struct
import threading
import time
import urllib.request
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import msgspec
import pytest
import xxhash

from moonpool import Store
from moonpool.core.messages import ObjectInfo, SegmentInfo
from moonpool.errors import MoonpoolError, TransferError
from tests.adversarial.conftest import MakeCluster
from tests.adversarial.harness import Cluster, eventually
from tests.adversarial.values import MIB, fault_in, value_of

pack_message = msgspec.msgpack.encode
BIG = (-1, -(2**63), 2**31, 2**32, 2**53, 2**63 - 1, 2**63, 2**64 - 1)
ODD_TIMES = (float("nan"), float("inf"), float("-inf"), -1.0, 1e308, 0.0)


def frame(message: object, request: object = 1) -> bytes:
    """Return a frame of the master's port."""
    body = pack_message([request, message])
    return struct.pack("<I", len(body)) + body


def data_frame(message: object) -> bytes:
    """Return a frame of a node's data port."""
    body = pack_message(message)
    return struct.pack("<I", len(body)) + body


def hello(
    role: str = "client", peer: str = "hostile", versions: tuple[object, object] = (1, 1)
) -> bytes:
    """Return the first frame to a master."""
    return frame(["Hello", *versions, role, peer])


def connect(port: int, timeout_s: float = 2.0) -> socket.socket:
    """Return a connection to a port of this machine."""
    return socket.create_connection(("127.0.0.1", port), timeout_s)


def send(port: int, data: bytes, *, wait: bool = True, timeout_s: float = 2.0) -> bytes:
    """Send bytes, close the sending side, and return what came until the end or the deadline."""
    got = bytearray()
    with connect(port, timeout_s) as sock, contextlib.suppress(OSError):
        sock.sendall(data)
        if wait:
            sock.shutdown(socket.SHUT_WR)
            while part := sock.recv(65536):
                got += part
    return bytes(got)


def receive(sock: socket.socket) -> Any:
    """Return the next frame's content, or None if the connection ends."""
    head = b""
    while len(head) < 4:
        part = sock.recv(4 - len(head))
        if not part:
            return None
        head += part
    body = b""
    while len(body) < struct.unpack("<I", head)[0]:
        part = sock.recv(struct.unpack("<I", head)[0] - len(body))
        if not part:
            return None
        body += part
    return msgspec.msgpack.decode(body)


class Session:
    """A connection to the master that says what it likes."""

    def __init__(self, port: int, role: str = "client", peer: str = "hostile") -> None:
        self.sock = connect(port, 5.0)
        self.sock.sendall(hello(role, peer))
        self.welcome = receive(self.sock)

    def ask(self, message: object) -> Any:
        """Return the answer, ["closed"] if the connection ended."""
        try:
            self.sock.sendall(frame(message, 7))
            while (answer := receive(self.sock)) and answer[0] == 0:
                pass
        except ConnectionError:
            return ["closed"]
        return answer[1] if answer else ["closed"]

    def close(self) -> None:
        """Close the connection."""
        self.sock.close()


class Good:
    """A client that works all the time and notes what it should not see."""

    def __init__(self, cluster: Cluster) -> None:
        self.stores = [cluster.connect(transports=(way,)) for way in ("shm", "tcp")]
        self.kept = {f"kept-{i}": value_of(f"kept-{i}", 0, 50_000 + i) for i in range(40)}
        self.stores[0].remove_all(force=True)
        self.stores[0].put_batch(list(self.kept), list(self.kept.values()))
        self.done = 0
        self.faults: list[str] = []
        self.tolerated: tuple[type[MoonpoolError], ...] = ()
        self.stop = threading.Event()
        self.threads = [threading.Thread(target=self.work, args=(s,)) for s in self.stores]
        for thread in self.threads:
            thread.start()

    def work(self, store: Store) -> None:
        """Put, get, look and remove."""
        chance, name = random.Random(1), f"good-{id(store)}"
        while not self.stop.wait(0.002):
            try:
                key = f"{name}-{self.done % 7}"
                store.put(key, value_of(key, 0, 10_000))
                if fault := fault_in(key, store.get(key), 10_000):
                    self.faults.append(fault)
                store.remove(key)
                kept = chance.choice(list(self.kept))
                if store.get(kept) != self.kept[kept]:
                    self.faults.append(f"wrong bytes of {kept}")
                self.done += 1
            except MoonpoolError as error:
                if not isinstance(error, self.tolerated):
                    self.faults.append(repr(error))
                time.sleep(0.05)

    def end(self) -> None:
        """Stop, and fail if anything was wrong."""
        eventually(lambda: self.done > 20, 10, "the good client goes on")
        self.stop.set()
        for thread in self.threads:
            thread.join()
        assert not self.faults, self.faults[:10]
        for store in self.stores:
            assert store.match_prefix(list(self.kept)) == len(self.kept)
            assert list(store.get_batch(list(self.kept))) == list(self.kept.values())


@pytest.fixture
def good(shared: Cluster) -> Iterator[Good]:
    """Let a good client work during the test, and check it and the servers afterwards."""
    client = Good(shared)
    before = {d.role: d.rss_bytes() for d in (shared.master, shared.nodes["shared"])}
    yield client
    client.end()
    for daemon in (shared.master, shared.nodes["shared"]):
        assert daemon.alive, daemon.tail()
        grown = daemon.rss_bytes() - before[daemon.role]
        assert grown < 150 * MIB, f"{daemon.role} grew by {grown / MIB:.0f} MiB"
        assert tracebacks(daemon.log.read_text(errors="replace")) == []
    health = f"http://127.0.0.1:{shared.master.ports['http_port']}/health"
    with urllib.request.urlopen(health, timeout=5) as answer:
        assert answer.status == 200


def tracebacks(log: str) -> list[str]:
    """Return the log lines that a traceback of the daemon's own follows."""
    lines = log.splitlines()
    return [
        a for a, b in pairwise(lines) if b.startswith("Traceback") and "aiohttp.server" not in a
    ]


def ports(cluster: Cluster) -> list[int]:
    """Return the master's RPC and HTTP ports and the node's data port."""
    master = cluster.master.ports
    return [master["port"], master["http_port"], cluster.nodes["shared"].ports["port"]]


def nested(depth: int, head: bytes = b"\x91") -> bytes:
    """Return msgpack arrays inside each other, as a frame."""
    body = head * depth + b"\xc0"
    return struct.pack("<I", len(body)) + body


def shapes() -> list[bytes]:
    """Return malformed beginnings of a connection."""
    return [
        b"",
        b"\x01",
        b"\x00\x00\x00\x00",
        b"\x00\x00\x00\x00" * 1000,
        b"\xff\xff\xff\xff" + b"x" * 1000,
        struct.pack("<I", 64 * MIB) + b"x",
        struct.pack("<I", 64 * MIB + 1) + b"x" * 100,
        struct.pack("<I", 10) + b"x" * 3,
        struct.pack("<I", 4) + b"\xc1\xc1\xc1\xc1",
        struct.pack("<I", 5) + b"\xdd\xff\xff\xff\xff",
        struct.pack("<I", 5) + b"\xdf\xff\xff\xff\xff",
        struct.pack("<I", 5) + b"\xc6\xff\xff\xff\xff",
        nested(500),
        nested(200_000),
        nested(200_000, b"\x81\x01"),
        frame(["Hello", 1, 1, "client", "h"])[:-1],
        frame(["Hello"]),
        frame(["Hello", 2**63, 2**64 - 1, "client", "h"]),
        frame(["Hello", -5, -1, "client", "h"]),
        frame(["Hello", 9, 1, "client", "h"]),
        frame(["Hello", 1, 1, "emperor", "h"]),
        frame(["Hello", 1, 1, "client", ""]),
        frame(["Hello", 1, 1, "client", "h" * 10_000_00]),
        frame(["Hello", 1.0, float("nan"), "client", "h"]),
        frame(["GetStatus"]),
        frame([]),
        frame(None),
        frame(["os.system", "true"]),
        frame({"Hello": 1}),
        pack_message(["Hello"]),
        hello() + frame(["GetStatus"], -1),
        hello() + frame(["GetStatus"], 2**64 - 1),
        hello() + frame(["GetStatus"], "x"),
        hello() + hello("node"),
        hello() + frame(["Welcome", 1, 1]),
        hello() + frame(["PeerGone", "shared", "node"]),
        hello() + frame(["Tick"]),
        hello() + b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /../../../../etc/passwd HTTP/1.1\r\nHost: x\r\n\r\n",
        b"POST /status HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\nxxxxx",
        b"POST /status HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999\r\n\r\nx",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFF\r\nx",
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 20_000,
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 300,
        data_frame(["OpenData", 1, 1, "h"])[:-2],
        data_frame(["OpenData", 2**63, 2**64 - 1, "h"]),
        data_frame(["OpenData", 1, 1, "h"]) + data_frame(["Attach"]) + b"more" * 1000,
        data_frame(["OpenData", 1, 1, "h"]) + data_frame(["WriteTail", b""]),
        data_frame(["OpenData", 1, 1, "h"]) + data_frame(["ReadBatch", "x", b"1", b"2", b"3"]),
    ]  # fmt: skip


def test_malformed_beginnings_on_every_port(shared: Cluster, good: Good) -> None:
    for data in shapes():
        for port in ports(shared):
            send(port, data)


def test_bad_http_is_logged_in_one_line(shared: Cluster) -> None:
    before = shared.master.log.stat().st_size
    for line in (
        b"GET /" + b"a" * 9000,
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: -5",
        b"\x00",
    ):
        send(shared.master.ports["http_port"], line + b"\r\n\r\n")
    log = shared.master.log.read_bytes()[before:].decode(errors="replace")
    assert len(log.splitlines()) <= 3, log


def test_random_bytes_and_mutated_frames_on_every_port(shared: Cluster, good: Good) -> None:
    chance = random.Random(11)
    seeds = [shape for shape in shapes() if 0 < len(shape) < 1000]
    seeds += [hello() + frame(message) for message in absurd_requests()[:200]]
    for _ in range(400):
        data = bytearray(chance.choice(seeds) if chance.random() < 0.8 else chance.randbytes(200))
        for _ in range(chance.randrange(1, 6)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        if chance.random() < 0.3:
            del data[chance.randrange(len(data)) :]
        for port in ports(shared):
            send(port, bytes(data), wait=chance.random() < 0.1, timeout_s=1.0)


def absurd_requests() -> list[list[object]]:
    """Return well-formed frames with absurd content, as any client could send them."""
    key, digest = b"\x00kept-1", b"d" * 16
    requests: list[list[object]] = []
    for n in BIG:
        requests += [
            ["PutStart", [[b"\x00h", n, b""]], 1, "", False],
            ["PutStart", [[b"\x00h", 10, b""]], n, "", False],
            ["PutEnd", [n], [n]],
            ["PutRevoke", [n]],
            ["Get", [key], n, 1.0],
            ["Hold", [key], n, 1.0],
            ["Match", b"n", digest, n, 1],
            ["Match", b"n", digest, 16, n],
            ["List", None, b"", n, 10],
            ["List", None, b"", 0, n],
            ["Announce", n, [], True],
            ["Unmount", n],
            ["WriterGone", "x", n],
        ]
    for t in ODD_TIMES:
        requests += [["Get", [key], 5, t], ["Hold", [key], 5, t]]
    requests += [
        ["PutEnd", [1, 2, 3], [1]],
        ["PutStart", [[b"", 10, b""]], 1, "", False],
        ["PutStart", [[b"\xffx", 10, b""]], 1, "", False],
        ["PutStart", [[b"\x00" + b"k" * 5000, 10, b""]], 1, "", False],
        ["PutStart", [[b"\x00h", 10, b"\x09"]], 1, "", False],
        ["PutStart", [[b"\x00h", 10, b""]] * 3, 1, "x" * 100_000, False],
        ["PutStart", [], 1, "", False],
        ["Match", b"n" * 1000, digest, 16, 1],
        ["Match", b"n", b"odd", 16, 1],
        ["Match", b"n", b"", 16, 1],
        ["Match", b"n", bytes(1 << 20), 1, 1],
        ["MatchKeys", [b""] * 10_000],
        ["Exists", [b"\xff"] * 10_000],
        ["Remove", [b""], False],
        ["Stat", b""],
        ["WriterGone", "", 0],
        ["WriterGone", "shared", 2**60],
        ["Mount", ["s", "shared", "h", "127.0.0.1:1", "/etc/passwd", 2**63, 2**62], 0],
        ["Hello", 1, 1, "node", "again"],
    ]
    return requests


def test_absurd_requests_are_answered_or_end_the_connection(shared: Cluster, good: Good) -> None:
    port = shared.master.ports["port"]
    session = Session(port)
    for message in absurd_requests():
        answer = session.ask(message)
        assert isinstance(answer, list), message
        if answer == ["closed"]:
            session.close()
            session = Session(port)
            assert session.welcome[1][0] == "Welcome"
    session.close()
    store = shared.stores[0]
    eventually(lambda: store.status().puts_in_progress < 5, 5, "puts of the hostile client end")
    eventually(
        lambda: all(i.leases == 0 for i in store.list("kept-1") if i.key == b"\x00kept-1"),
        5, "leases of the hostile client end",
    )  # fmt: skip


def test_client_that_claims_to_be_somebody_else_takes_nothing_away(
    shared: Cluster, good: Good
) -> None:
    port = shared.master.ports["port"]
    node = shared.stores[0].status().segments[0].info
    for role in ("client", "node"):
        for peer in ("shared", node.node, node.name, f"{node.node}/{node.name}", node.host):
            session = Session(port, role, peer)
            if session.welcome and session.welcome[1][0] == "Welcome":
                for message in (
                    ["Unmount", node.handle],
                    ["Announce", node.handle, [], True],
                    ["WriterGone", peer, 2**62],
                ):
                    session.ask(message)
            session.close()
    assert [s.ready for s in shared.stores[0].status().segments] == [True]


def evil_mounts(path: str) -> list[list[object]]:
    """Return segments that cannot be, with what they could do to a master that believes them."""
    here = "127.0.0.1:1"
    return [
        ["evil", "evil", "h", here, path, size, slots]
        for size in (0, -1, 1, 4095, 2**40, 2**62, 2**63 - 1)
        for slots in (0, -1, 1, 2**31, 2**62)
    ] + [
        ["x" * 1_000_000, "evil", "h", here, path, MIB, 16],
        ["", "", "", "", "", MIB, 16],
        ["../../x", "evil", "h", "nonsense", "/etc/passwd", MIB, 16],
    ]


def test_hostile_node_cannot_break_the_master(shared: Cluster, good: Good) -> None:
    # A node that is mounted and lies is given puts; they fail, and nothing else does.
    good.tolerated = (TransferError,)
    port = shared.master.ports["port"]
    before = shared.master.rss_bytes()
    for i, segment in enumerate(evil_mounts("/nonexistent/evil.seg")):
        session = Session(port, "node", f"evil-{i}")
        answer = session.ask(["Mount", segment, 0])
        if answer[0] == "Mounted":
            handle = answer[1]
            for found in (
                [b"\x00kept-1", b"", 50_001, 53_248, 1, 7, 0, 0],
                [b"\x00e1", b"", 10, 4096, 1, 8, 2**40, 0],
                [b"\x00e2", b"", 10, 4096, 1, 9, 0, -4096],
                [b"\x00e3", b"", 10, 4096, 1, 10, 0, 2**62],
                [b"\x00e4", b"", 2**50, 4096, 1, 11, 0, 0],
                [b"\x00e5", b"", -1, 4096, 1, 12, 0, 0],
                [b"\x00e6", b"", 10, 0, 1, 13, 0, 1],
                [b"\x00e7", b"\x00e7", 10, 4096, 2**64 - 1, 2**64 - 1, 0, 0],
                [b"", b"", 10, 4096, 1, 14, 1, 4096],
                [b"\xff", b"\xff", 10, 4096, 1, 15, 1, 4096],
            ):
                if session.ask(["Announce", handle, [found], False]) == ["closed"]:
                    break
            session.ask(["Announce", handle, [], True])
        session.close()
        assert shared.master.rss_bytes() - before < 150 * MIB, segment
    store = shared.stores[0]
    eventually(lambda: len(store.status().segments) == 1, 5, "evil segments are gone")
    assert store.put("after evil", b"x")
    assert store.get("after evil") == b"x"


def u64(*values: int) -> bytes:
    """Return numbers as the bytes of an array."""
    return b"".join(struct.pack("<Q", value % 2**64) for value in values)


def opened(port: int, client: str = "hostile") -> socket.socket:
    """Return an open connection to a data port."""
    sock = connect(port, 3.0)
    sock.sendall(data_frame(["OpenData", 1, 1, client]))
    answer = receive(sock)
    assert answer, "no answer to OpenData"
    assert answer[0] == "DataReady", answer
    return sock


def victim(cluster: Cluster) -> tuple[SegmentInfo, ObjectInfo, int, int]:
    """Return a segment, one of its objects, and where that is: table index and offset."""
    store = cluster.stores[0]
    session = Session(cluster.master.ports["port"], peer="looker")
    answer = session.ask(["Get", [b"\x00kept-5"], 77, 1.0])
    session.close()
    _, index, offset, *_ = answer[1][0][3][0]
    return store.status().segments[0].info, store.stat("kept-5"), index, offset


def test_reads_outside_of_segments(shared: Cluster, good: Good) -> None:
    info, object_, _, offset = victim(shared)
    port, g = shared.nodes["shared"].ports["port"], object_.generation
    segments = (
        info.name,
        "",
        "../../../etc/passwd",
        "/etc/passwd",
        "x" * 70_000,
        f"{info.name}\x00",
    )
    for segment in segments:
        for at in (-4096, 2**63, 2**64 - 1, info.data_bytes, info.data_bytes - 4096, offset + 1, 0):
            for size in (0, 1, 4096, 8192, info.data_bytes + 1, 2**40, 2**63, 2**64 - 1):
                if segment != info.name and (at or size > 4096):
                    continue
                with opened(port) as sock, contextlib.suppress(ConnectionError):
                    sock.sendall(data_frame(["ReadBatch", segment, u64(at), u64(size), u64(g)]))
                    head = receive(sock)
                    if head and head[0] == "ReadHead":
                        (code,) = struct.unpack("<q", head[1])
                        assert code != 0 or size == 0, (segment, at, size)


def test_read_batches_of_arrays_that_do_not_fit(shared: Cluster, good: Good) -> None:
    info, object_, _, offset = victim(shared)
    port, n = shared.nodes["shared"].ports["port"], 1_000_000
    for arrays in (
        (u64(offset), u64(), u64(object_.generation)),
        (u64(offset)[:-1], u64(10), u64(object_.generation)),
        (u64(offset, offset), u64(10), u64(object_.generation)),
        (b"", b"", b""),
        (u64(offset) * n, u64(object_.size) * n, u64(object_.generation) * n),
    ):
        with opened(port) as sock, contextlib.suppress(OSError):
            sock.sendall(data_frame(["ReadBatch", info.name, *arrays]))
            sock.settimeout(0.3)
            receive(sock)


def write_batch(
    segment: str, index: int, at: int, size: int, capacity: int, generation: int,
    payload: bytes, key: bytes = b"\x00kept-5",
) -> bytes:  # fmt: skip
    """Return a whole write of one object."""
    head = data_frame(
        ["WriteBatch", segment, u64(index), u64(at), u64(size), u64(capacity), u64(generation),
         [key], [b""]]
    )  # fmt: skip
    return head + payload + data_frame(["WriteTail", u64(xxhash.xxh3_64_intdigest(payload))])


def test_writes_outside_of_segments_are_not_done(shared: Cluster, good: Good) -> None:
    info, object_, index, _ = victim(shared)
    port, g = shared.nodes["shared"].ports["port"], object_.generation + 2**40
    payload = b"\xee" * 4096
    for at, i, size, capacity in [
        (-4096, index, 4096, 4096), (2**63, index, 4096, 4096), (2**64 - 4096, index, 4096, 4096),
        (info.data_bytes, index, 4096, 4096), (info.data_bytes - 4096, index, 8192, 8192),
        (info.data_bytes - 4096, info.slots, 4096, 4096), (info.data_bytes - 4096, -1, 4096, 4096),
        (info.data_bytes - 4096, 2**62, 4096, 4096), (info.data_bytes - 4095, index, 10, 4095),
        (info.data_bytes - 4096, info.slots - 1, 4096, 0), (0, index, 2**40, 2**40),
        (0, index, 2**63, 4096), (info.data_bytes - 4096, info.slots - 1, 4096, 2**64 - 4096),
    ]:  # fmt: skip
        data = write_batch(info.name, i, at, size, capacity, g, payload)
        send(port, data_frame(["OpenData", 1, 1, "hostile"]) + data)
    for segment in ("../../../../tmp/x", "/etc/hostname", "", "x" * 100_000):
        data = write_batch(segment, index, 0, 4096, 4096, g, payload)
        send(port, data_frame(["OpenData", 1, 1, "hostile"]) + data)


@pytest.mark.parametrize("shift", [-1, 0, 1, 2**40])
def test_forged_writes_over_an_object_never_give_its_readers_wrong_bytes(
    make_cluster: MakeCluster, shift: int
) -> None:
    """Who has no token may destroy an object where none is set, and never change one."""
    cluster = make_cluster([("shared", "8MB")])
    store, tcp = cluster.stores[0], cluster.connect(transports=("tcp",))
    value = value_of("kept-5", 0, 50_000)
    store.put("kept-5", value)
    info, object_, index, offset = victim(cluster)
    payload, generation = b"\xee" * 50_000, object_.generation + shift
    forged = write_batch(info.name, index, offset, 50_000, 53_248, generation, payload)
    port = cluster.nodes["shared"].ports["port"]
    send(port, data_frame(["OpenData", 1, 1, "hostile"]) + forged)
    for way in (store, tcp):
        if shift <= 0:
            assert way.get("kept-5") == value
        else:
            assert way.get_batch(["kept-5"])[0] in (value, None)
    assert store.put("another", b"x")
    assert store.get("another") == b"x"


def test_forged_generation_does_not_keep_a_node_out_for_good(make_cluster: MakeCluster) -> None:
    cluster = make_cluster([("shared", "16MB")])
    store, node = cluster.stores[0], cluster.nodes["shared"]
    store.put("kept-5", b"x" * 50_000)
    store.put("other", b"o" * 5000)
    info, _, index, offset = victim(cluster)
    for generation in (2**63, 2**64 - 1):
        data = write_batch(info.name, index, offset, 50_000, 53_248, generation, b"\xee" * 50_000)
        send(node.ports["port"], data_frame(["OpenData", 1, 1, "hostile"]) + data)
    assert store.get_batch(["kept-5"])[0] in (b"x" * 50_000, None)
    assert store.get("other") == b"o" * 5000
    node.end()
    node.spawn()
    eventually(lambda: cluster.ready_nodes() == 1, 10, f"node joins again: {node.tail()[-300:]}")
    assert store.get("other") == b"o" * 5000


def test_slowloris_on_every_port(shared: Cluster, good: Good) -> None:
    half = [hello()[:9], b"GET / HT", data_frame(["OpenData", 1, 1, "h"])[:7]]
    idle = [hello() + frame(["GetStatus"])[:6], b"", data_frame(["OpenData", 1, 1, "h"])]
    sockets = []
    try:
        for i in range(100):
            for port, first, second in zip(ports(shared), half, idle, strict=True):
                with contextlib.suppress(OSError):
                    sock = connect(port)
                    sockets.append(sock)
                    sock.sendall(first if i % 2 else second)
        before = good.done
        eventually(lambda: good.done > before + 20, 10, "the good client goes on")
        with connect(shared.master.ports["http_port"]) as sock:
            sock.sendall(b"GET /health HTTP/1.0\r\n\r\n")
            assert b"200" in sock.recv(1000)
        late = shared.connect()
        assert late.get("kept-1") == good.kept["kept-1"]
    finally:
        for sock in sockets:
            sock.close()


def test_large_frames_before_a_greeting_do_not_fill_memory(shared: Cluster, good: Good) -> None:
    block = bytes(MIB)
    for port in ports(shared):
        sockets = []
        for _ in range(12):
            sock = connect(port)
            sock.setblocking(False)
            sockets.append(sock)
            with contextlib.suppress(OSError):
                sock.send(struct.pack("<I", 60 * MIB))
        for _ in range(30):
            for sock in sockets:
                with contextlib.suppress(OSError):
                    sock.send(block)
            time.sleep(0.005)
        for daemon in (shared.master, shared.nodes["shared"]):
            assert daemon.rss_bytes() < 400 * MIB, daemon.role
        for sock in sockets:
            sock.close()


def test_client_that_never_reads_its_answers(shared: Cluster, good: Good) -> None:
    before = shared.master.rss_bytes()
    sockets = []
    question = frame(["List", None, b"", 0, 1000]) * 100
    for i in range(4):
        sock = connect(shared.master.ports["port"])
        sock.sendall(hello(peer=f"deaf-{i}"))
        sock.setblocking(False)
        sockets.append(sock)
    until = time.monotonic() + 2
    while time.monotonic() < until:
        for sock in sockets:
            with contextlib.suppress(OSError):
                sock.send(question)
        time.sleep(0.01)
    assert shared.master.rss_bytes() - before < 100 * MIB
    for sock in sockets:
        sock.close()


def test_write_that_stops_half_way_is_no_object(shared: Cluster, good: Good) -> None:
    session = Session(shared.master.ports["port"], peer="halfway")
    answer = session.ask(["PutStart", [[b"\x00halfway", 10 * MIB, b""]], 1, "", False])
    assert answer[0] == "PutStarted", answer
    _, generation, capacity, slots, *_ = answer[1][0]
    info = shared.stores[0].status().segments[0].info
    data = write_batch(
        info.name, slots[0][1], slots[0][2], 10 * MIB, capacity, generation, b"", b"\x00halfway"
    )
    with opened(shared.nodes["shared"].ports["port"], "halfway") as sock:
        sock.sendall(data[: len(data) - 20] + b"z" * MIB)
        time.sleep(0.1)
        assert shared.stores[0].exists("halfway") is False
    session.close()
    store = shared.stores[0]
    eventually(lambda: all(i.key != b"\x00halfway" for i in store.list()), 5, "its put is gone")
    eventually(lambda: store.status().segments[0].pending_bytes == 0, 5, "its space is free")


def test_wrong_checksum_on_the_way_is_not_committed(shared: Cluster, good: Good) -> None:
    session = Session(shared.master.ports["port"], peer="liar")
    answer = session.ask(["PutStart", [[b"\x00liar", 5000, b""]], 1, "", False])
    _, generation, capacity, slots, *_ = answer[1][0]
    info = shared.stores[0].status().segments[0].info
    payload = b"z" * 5000
    data = bytearray(
        write_batch(
            info.name, slots[0][1], slots[0][2], 5000, capacity, generation, payload, b"\x00liar"
        )
    )
    data[-2500] ^= 1
    with opened(shared.nodes["shared"].ports["port"], "liar") as sock:
        sock.sendall(data)
        answer = receive(sock)
        assert answer is None or answer[0] == "Refused" or struct.unpack("<q", answer[1])[0] < 0
    session.close()
    store = shared.stores[0]
    assert not store.exists("liar")
    eventually(lambda: all(i.key != b"\x00liar" for i in store.list()), 5, "its put is gone")


class Fake:
    """A server that answers every connection with the same bytes, or not at all."""

    def __init__(self, answers: list[bytes], *, close: bool = True) -> None:
        self.answers, self.close_after, self.at = answers, close, 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.listener.getsockname()[1]
        self.open: list[socket.socket] = []
        self.talks: list[threading.Thread] = []
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()

    def serve(self) -> None:
        """Accept until closed; each part of an answer follows something received."""
        while True:
            try:
                sock, _ = self.listener.accept()
            except OSError:
                return
            self.talks.append(threading.Thread(target=self.talk, args=(sock,), daemon=True))
            self.talks[-1].start()

    def talk(self, sock: socket.socket) -> None:
        """Say one part after each thing heard."""
        self.open.append(sock)
        with sock, contextlib.suppress(OSError):
            for part in self.answers:
                sock.recv(1 << 16)
                sock.sendall(part)
            while not self.close_after and sock.recv(1 << 16):
                pass

    def close(self) -> None:
        """Stop serving."""
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.thread.join()
        for sock in list(self.open):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in self.talks:
            thread.join()


def get_twice(address: str) -> None:
    """Connect, and get a key twice."""
    with Store.connect(address, timeout_s=0.3) as store:
        store.get("k")
        store.get("k")


WELCOME = frame(["Welcome", 1, 5], 1)


@pytest.mark.parametrize(
    "answers",
    [
        [], [b"\x00"], [b"\xff\xff\xff\xff" * 9], [random.Random(2).randbytes(5000)],
        [frame(["Welcome", 99, 5])], [frame(["Welcome", 1, -5])], [frame(["Failed", -300, "no"])],
        [frame(["Failed", 5, "x" * 100_000])], [frame(["Failed"])], [frame(["Got", []])],
        [nested(100_000)], [WELCOME], [WELCOME, b"\x01\x02"],
        [WELCOME, frame(["Existing", b"\x01" * 9], 1)],
        [WELCOME, frame(["Existing", b"\x01"], 999)], [WELCOME, frame(["Got", []], 2)],
        [WELCOME, frame(["Done"], 2), frame(["Done"], 3)], [b"HTTP/1.1 400 Bad Request\r\n\r\n"],
        [WELCOME, struct.pack("<I", 64 * MIB) + b"x"],
    ],
    ids=lambda a: repr(b"".join(a)[:24]),
)  # fmt: skip
@pytest.mark.parametrize("close", [True, False], ids=["closes", "hangs"])
def test_fake_master_gives_the_client_a_typed_error_in_time(
    answers: list[bytes], close: bool
) -> None:
    fake = Fake(answers, close=close)
    start = time.monotonic()
    try:
        with pytest.raises(MoonpoolError):
            get_twice(f"127.0.0.1:{fake.port}")
        assert time.monotonic() - start < 4
    finally:
        fake.close()


READY = data_frame(["DataReady", 1, "evil"])
FAKE_NODES: dict[str, list[bytes]] = {
    "silent": [],
    "garbage": [b"\xff" * 100],
    "ready then garbage": [READY, b"\xff" * 100],
    "short payload": [READY, data_frame(["ReadHead", struct.pack("<q", 0)]) + b"x" * 10],
    "wrong payload": [
        READY,
        data_frame(["ReadHead", struct.pack("<q", 0)])
        + b"x" * 5000
        + data_frame(["ReadTail", struct.pack("<q", 0)]),
    ],
    "no codes": [READY, data_frame(["ReadHead", b""])],
    "too many codes": [READY, data_frame(["ReadHead", struct.pack("<q", 0) * 1000])],
    "positive code": [READY, data_frame(["ReadHead", struct.pack("<q", 77)])],
    "refused": [READY, data_frame(["Refused", -5, "x" * 10_000])],
    "attached to a foreign file": [
        READY,
        data_frame(["Attached", "HOST", [["evil", "/etc/hostname", 1]]]),
    ],
    "attached to a directory": [READY, data_frame(["Attached", "HOST", [["evil", "/tmp", 1]]])],
    "attached to a device": [READY, data_frame(["Attached", "HOST", [["evil", "/dev/zero", 1]]])],
    "attached to a pipe": [READY, data_frame(["Attached", "HOST", [["evil", "FIFO", 1]]])],
}


@pytest.mark.parametrize("kind", FAKE_NODES)
def test_fake_node_gives_a_miss_and_never_wrong_bytes(
    shared: Cluster, kind: str, tmp_path: Any
) -> None:
    store = shared.stores[0]
    host = store.status().segments[0].info.host
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    answers = FAKE_NODES[kind]
    if "HOST" in repr(answers):
        message = msgspec.msgpack.decode(answers[1][4:])
        message[1] = host
        message[2][0][1] = message[2][0][1].replace("FIFO", str(fifo))
        answers = [answers[0], data_frame(message)]
    fake = Fake(answers, close="short" in kind)
    session = Session(shared.master.ports["port"], "node", f"evil-{kind}")
    client = shared.connect(timeout_s=0.5)
    try:
        mounted = session.ask(
            ["Mount", ["evil", "evil", host, f"127.0.0.1:{fake.port}", "/etc/hostname", MIB, 16], 0]
        )
        assert mounted[0] == "Mounted", mounted
        value = b"y" * 5000
        found = [b"\x00trap", b"", 5000, 8192, xxhash.xxh3_64_intdigest(value), 12345, 0, 0]
        assert session.ask(["Announce", mounted[1], [found], True])[0] == "Announced"
        assert client.exists("trap")
        start = time.monotonic()
        with pytest.raises(MoonpoolError):
            client.get("trap")
        assert client.get_batch(["trap"]) == [None]
        assert time.monotonic() - start < 8
    finally:
        session.close()
        fake.close()
    eventually(lambda: not client.exists("trap"), 3, "the fake node is forgotten")
    client.put("real", b"x")
    assert client.get("real") == b"x"
    client.close()


def test_nothing_was_left_outside_of_the_segment(shared: Cluster) -> None:
    files = [p for p in shared.segments.rglob("*") if p.is_file()]
    assert len([p for p in files if p.suffix == ".seg"]) == 1, files
    assert len(files) < 6, files
