"""What this machine can do by itself: memcpy and plain blocking sockets."""

from __future__ import annotations

import itertools
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from moonpool.bench.batch import Bytes

SOCKET_CHUNK_BYTES = 1 << 20
STOP_S = 10.0

_SINK = """
import socket, sys, threading
port, streams, size, chunk = map(int, sys.argv[1:5])
def drain(part):
    with socket.create_connection(("127.0.0.1", port)) as peer:
        buffer = memoryview(bytearray(part))
        while peer.recv(1, socket.MSG_PEEK):
            got = 0
            while got < part:
                n = peer.recv_into(buffer[got:got + chunk])
                if not n:
                    return
                got += n
            peer.sendall(b"k")
threads = [threading.Thread(target=drain, args=(size // streams,)) for _ in range(streams)]
[t.start() for t in threads]
[t.join() for t in threads]
"""


def memcpy_seconds(destination: Bytes, source: Bytes, threads: int = 1) -> float:
    """Return the time to copy ``source`` to ``destination`` once with NumPy, in so many threads."""
    cuts = np.linspace(0, len(source), threads + 1).astype(int)
    work = [
        threading.Thread(target=np.copyto, args=(destination[a:b], source[a:b]))
        for a, b in itertools.pairwise(cuts)
    ]
    began = time.perf_counter()
    for thread in work:
        thread.start()
    for thread in work:
        thread.join()
    return time.perf_counter() - began


class SocketLimit:
    """Plain blocking TCP sockets on loopback to another process that only receives."""

    def __init__(self, size: int, streams: int, congestion: str = "") -> None:
        """congestion: the algorithm of TCP; empty: the system's choice. Raises OSError."""
        self.size = size
        self.streams = streams
        with socket.create_server(("127.0.0.1", 0), backlog=streams) as server:
            server.settimeout(30)
            port = server.getsockname()[1]
            if congestion:  # what it accepts inherits it
                server.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, congestion.encode())
            arguments = [str(n) for n in (port, streams, size, SOCKET_CHUNK_BYTES)]
            self.sink = subprocess.Popen([sys.executable, "-c", _SINK, *arguments])
            self.peers = [server.accept()[0] for _ in range(streams)]

    def seconds(self, source: Bytes) -> float:
        """Return the time until the other process has received ``source`` once."""
        view = source.data
        part = self.size // self.streams

        def send(peer: socket.socket, begin: int) -> None:
            for at in range(begin, begin + part, SOCKET_CHUNK_BYTES):
                peer.sendall(view[at : min(at + SOCKET_CHUNK_BYTES, begin + part)])
            peer.recv(1)

        work = [
            threading.Thread(target=send, args=(peer, number * part))
            for number, peer in enumerate(self.peers)
        ]
        began = time.perf_counter()
        for thread in work:
            thread.start()
        for thread in work:
            thread.join()
        return time.perf_counter() - began

    def close(self) -> None:
        """End the receiving process."""
        for peer in self.peers:
            peer.close()
        try:
            self.sink.wait(timeout=STOP_S)
        except subprocess.TimeoutExpired:
            self.sink.kill()
            self.sink.wait()


@contextmanager
def socket_limit(size: int, streams: int, congestion: str = "") -> Iterator[SocketLimit]:
    """Run a SocketLimit for the length of a ``with`` block."""
    limit = SocketLimit(size, streams, congestion)
    try:
        yield limit
    finally:
        limit.close()
