"""A real etcd for tests: Debian's ``etcd-server``, or whichever ``etcd`` is found."""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
from pathlib import Path
from typing import Any, Self
from urllib.error import URLError
from urllib.request import HTTPSHandler, ProxyHandler, Request, build_opener

import pytest

from tests.integration.certificates import Authority
from tests.integration.processes import eventually, freeze

START_S = 30.0

ETCD = shutil.which("etcd")
OPEN = build_opener(ProxyHandler({})).open

needs_etcd = pytest.mark.skipif(
    ETCD is None, reason="no etcd on this machine (Debian: apt-get install etcd-server)"
)


class Etcd:
    """One etcd that keeps its data in a folder; started with ``with`` or ``start``."""

    def __init__(
        self, folder: Path, host: str = "127.0.0.1", authority: Authority | None = None
    ) -> None:
        """authority: signs its certificate, and those of its clients; None: no TLS."""
        self.folder = folder / "etcd"
        self.host = host
        self.port, self._peer_port = _free_port(host), _free_port(host)
        self.log = folder / "etcd.log"
        self.process: subprocess.Popen[bytes] | None = None
        self._authority = authority
        self._token = ""
        self._open = OPEN
        self._options: dict[str, object] = {}
        if authority is not None:
            self._use(authority)

    def _use(self, authority: Authority) -> None:
        cert, key = authority.issue("etcd")
        self._options = {"cert-file": cert, "key-file": key, "trusted-ca-file": authority.ca}
        context = ssl.create_default_context(cafile=str(authority.ca))
        context.load_cert_chain(*authority.issue("test"))
        self._open = build_opener(ProxyHandler({}), HTTPSHandler(context=context)).open

    @property
    def url(self) -> str:
        """The base URL of its gateway."""
        return f"{'http' if self._authority is None else 'https'}://{self.address}"

    @property
    def address(self) -> str:
        """Where its clients connect."""
        return f"{self.host}:{self.port}"

    def start(self) -> Self:
        """Start it and wait until it serves."""
        assert ETCD is not None
        client, peer = self.url, f"http://{self.host}:{self._peer_port}"
        options = {
            "data-dir": self.folder,
            "listen-client-urls": client,
            "advertise-client-urls": client,
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "initial-cluster": f"default={peer}",
            **self._options,
        }
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [ETCD, *(f"--{key}={value}" for key, value in options.items())]
                + ["--client-cert-auth"] * bool(self._authority),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={k: v for k, v in os.environ.items() if not k.startswith("ETCD_")}
                | {"ETCD_UNSUPPORTED_ARCH": "arm64"},
            )
        eventually("etcd serves", self._is_up, START_S)
        return self

    def ask(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Return the answer of its HTTP gateway."""
        headers = {"Authorization": self._token} if self._token else {}
        request = Request(f"{self.url}{path}", json.dumps(body).encode(), headers)
        with self._open(request, timeout=5) as response:
            found: dict[str, Any] = json.loads(response.read())
        return found

    def value(self, key: str) -> bytes | None:
        """Return what a key holds."""
        found = self.ask("/v3/kv/range", {"key": base64.b64encode(key.encode()).decode()})
        return base64.b64decode(found["kvs"][0]["value"]) if found.get("kvs") else None

    def put(self, key: str, value: bytes) -> None:
        """Write a key."""
        pair = {"key": key.encode(), "value": value}
        self.ask("/v3/kv/put", {k: base64.b64encode(v).decode() for k, v in pair.items()})

    def require_passwords(self, password: str, user: str, users_password: str) -> None:
        """Let nobody in without one: root, and a user who may do what masters do."""
        auth = "/v3/auth"
        self.ask(f"{auth}/user/add", {"name": "root", "password": password})
        self.ask(f"{auth}/role/add", {"name": "root"})
        self.ask(f"{auth}/user/grant", {"user": "root", "role": "root"})
        self.ask(f"{auth}/role/add", {"name": "moonpool"})
        first, end = (base64.b64encode(key).decode() for key in (b"/moonpool/", b"/moonpool0"))
        allowed = {"permType": "READWRITE", "key": first, "range_end": end}
        self.ask(f"{auth}/role/grant", {"name": "moonpool", "perm": allowed})
        self.ask(f"{auth}/user/add", {"name": user, "password": users_password})
        self.ask(f"{auth}/user/grant", {"user": user, "role": "moonpool"})
        self.ask(f"{auth}/enable", {})
        self.sign_in(password)

    def sign_in(self, password: str) -> None:
        """Be root from now on."""
        self._token = ""
        who = {"name": "root", "password": password}
        self._token = str(self.ask("/v3/auth/authenticate", who)["token"])

    def freeze(self) -> None:
        """Stop it until ``thaw``."""
        assert self.process is not None
        freeze(self.process.pid)

    def thaw(self) -> None:
        """Let it go on."""
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def end(self) -> None:
        """End it without any warning; its data stay."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(10)
            self.process = None

    def _is_up(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self.log.read_text(errors="replace")[-2000:]
        try:
            with self._open(f"{self.url}/health", timeout=1) as response:
                return bool(response.status == 200)
        except (URLError, OSError):
            return False

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.end()


def _free_port(host: str) -> int:
    with socket.create_server((host, 0)) as found:
        port: int = found.getsockname()[1]
        return port
