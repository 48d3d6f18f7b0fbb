"""A node that follows the protocol of the data port up to a point, and then does not."""

import contextlib
import socket
import struct
import threading
from collections.abc import Callable
from typing import Any

import msgspec
import xxhash

from moonpool.core.sizes import Plans
from tests.adversarial.harness import Cluster
from tests.adversarial.test_hostile import Session, data_frame
from tests.adversarial.values import MIB, value_of

SIZES = (5_000, 300_001, 2 * MIB + 5)


class Gone(Exception):
    """The other side has closed, or the talk is over."""


class Talk:
    """One connection to the fake node, with its opening done."""

    def __init__(self, sock: socket.socket, node: "FakeNode") -> None:
        self.sock, self.node = sock, node

    def read(self, nbytes: int) -> bytes:
        """Return so many bytes."""
        got = bytearray()
        while len(got) < nbytes:
            part = self.sock.recv(min(nbytes - len(got), 1 << 20))
            if not part:
                raise Gone
            got += part
        return bytes(got)

    def hear(self) -> Any:
        """Return the next message."""
        (size,) = struct.unpack("<I", self.read(4))
        return msgspec.msgpack.decode(self.read(size))

    def say(self, *message: object) -> None:
        """Send a message."""
        self.sock.sendall(data_frame(list(message)))

    def send(self, data: bytes) -> None:
        """Send bytes as they are."""
        self.sock.sendall(data)

    def flood(self) -> None:
        """Send for as long as somebody takes it."""
        while True:
            self.sock.sendall(bytes(MIB))

    def stall(self) -> None:
        """Neither read nor write until the node is closed."""
        self.node.over.wait()
        raise Gone

    def hang_up(self) -> None:
        """Close the connection in order."""
        raise Gone

    def reset(self) -> None:
        """Close the connection with a reset."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        raise Gone


Behaviour = Callable[[Talk, Any], None]


class FakeNode:
    """A data port and a mounted segment. ``behave`` is called for each request that is heard."""

    def __init__(
        self, cluster: Cluster, name: str, behave: Behaviour, *, mib: int = 8, buffer: int = 0
    ) -> None:
        self.name, self.behave, self.mib = name, behave, mib
        self.over = threading.Event()
        self.requests = 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        if buffer:
            self.listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        self.talks: list[tuple[socket.socket, threading.Thread]] = []
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()
        port = self.listener.getsockname()[1]
        self.session = Session(cluster.master.ports["port"], "node", f"fake-{name}")
        self.values = {f"{name}-{size}": value_of(f"{name}-{size}", 0, size) for size in SIZES}
        segment = [f"seg-{name}", f"fake-{name}", "elsewhere", f"127.0.0.1:{port}", "/none",
                   mib * MIB, 4096]  # fmt: skip
        answer = self.session.ask(["Mount", segment, 0])
        assert answer[0] == "Mounted", answer
        self.handle = answer[1]

    def announce(self, *, objects: bool, ready: bool) -> None:
        """Tell the master what is here, and whether it may grant room for puts."""
        found: list[list[object]] = []
        at, plans = 0, Plans(self.mib * MIB)
        for i, (key, value) in enumerate(self.values.items() if objects else ()):
            plan = plans.plan(len(value))
            span = plan.slabs * plans.slab_bytes
            at = -(-at // span) * span
            digest = xxhash.xxh3_64_intdigest(value)
            name = b"\0" + key.encode()
            found.append([name, b"", len(value), plan.capacity, digest, i + 1, i, at])
            at += span
        assert self.session.ask(["Announce", self.handle, found, ready])[0] == "Announced"
        known = self.session.ask(["Exists", [row[0] for row in found]])
        assert known[1] == b"\1" * len(found), known

    def payload(self, sizes: bytes) -> bytes:
        """Return the right bytes for a ReadBatch: its sizes tell which objects are meant."""
        by_size = {len(value): value for value in self.values.values()}
        return b"".join(by_size[size] for (size,) in struct.iter_unpack("<Q", sizes))

    def _serve(self) -> None:
        while not self.over.is_set():
            try:
                sock, _ = self.listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._talk, args=(sock,), daemon=True)
            self.talks.append((sock, thread))
            thread.start()

    def _talk(self, sock: socket.socket) -> None:
        talk = Talk(sock, self)
        with sock, contextlib.suppress(Gone, OSError):
            assert talk.hear()[0] == "OpenData"
            talk.say("DataReady", 1, f"fake-{self.name}")
            while True:
                request = talk.hear()
                self.requests += 1
                self.behave(talk, request)

    def close(self) -> None:
        """Unmount, and end all talks."""
        self.over.set()
        self.session.close()
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.thread.join()
        for sock, thread in self.talks:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            thread.join()
