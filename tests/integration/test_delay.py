"""The link with a delay: bytes arrive as they were, and not before their time."""

from __future__ import annotations

import hashlib
import subprocess
import sys

import pytest

from moonpool.bench.delay import delayed, why_not

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not() or "namespaces can be had")

DELAY_S = 0.02
FAR = """
import hashlib, socket, sys
with socket.create_server((sys.argv[1], 0)) as server:
    print(server.getsockname()[1], flush=True)
    peer, _ = server.accept()
    peer.sendall(peer.recv(1))
    digest = hashlib.sha256()
    while chunk := peer.recv(1 << 20):
        digest.update(chunk)
    peer.sendall(digest.digest())
"""
NEAR = """
import socket, sys, time
with socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=30) as peer:
    began = time.perf_counter()
    peer.sendall(b"x")
    peer.recv(1)
    print(time.perf_counter() - began)
    peer.sendall(bytes(range(256)) * 40_000)
    peer.shutdown(socket.SHUT_WR)
    print(peer.recv(32, socket.MSG_WAITALL).hex())
"""


def namespaces() -> str:
    return subprocess.run(["ip", "netns", "list"], capture_output=True, check=True).stdout.decode()


def test_a_delayed_link() -> None:
    with delayed(DELAY_S) as link:
        far = subprocess.Popen(
            link.inside(link.far, [sys.executable, "-c", FAR, link.far_address]),
            stdout=subprocess.PIPE,
            text=True,
        )
        assert far.stdout is not None
        port = far.stdout.readline().strip()
        near = subprocess.run(
            link.inside(link.near, [sys.executable, "-c", NEAR, link.far_address, port]),
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        assert far.wait(30) == 0
        far.stdout.close()
    round_trip_s, digest = near.stdout.split()
    assert float(round_trip_s) >= 2 * DELAY_S
    assert digest == hashlib.sha256(bytes(range(256)) * 40_000).hexdigest()
    assert link.near not in namespaces()
