"""How engines find each other: by their addresses, or through an HTTP metadata server."""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
import urllib.request

from moonpool.config_values import parse_address
from moonpool.errors import ConfigError, TransferError

P2P = "P2PHANDSHAKE"
DEFAULT_PORT = 12_001
REQUEST_S = 5.0
ANSWER_BYTES_MAX = 65_536


class Metadata:
    """Names of engines and where they are. ``name`` is this engine's."""

    def __init__(self, server: str, local: str) -> None:
        """server: P2PHANDSHAKE or ``http://host:port/metadata``. Raises ConfigError."""
        if server != P2P and not server.startswith(("http://", "https://")):
            raise ConfigError(
                f"metadata server: {server!r} is not allowed; allowed: {P2P}, http://host:port/..."
            )
        try:
            self.host, port = parse_address(local, DEFAULT_PORT)
        except ValueError:
            raise ConfigError(f"local_hostname: {local!r} is not allowed; host[:port]") from None
        self._server = "" if server == P2P else server
        self.name = f"{self.host}:{port}"

    def publish(self, port: int) -> None:
        """Say where this engine is. Raises ConfigError."""
        if not self._server:
            self.name = f"{self.host}:{port}"
            return
        body = {"ip_or_host_name": self.host, "rpc_port": port}
        try:
            self._ask("PUT", self.name, json.dumps(body).encode())
        except OSError as error:
            raise ConfigError(f"metadata server: {self._server}: {error}") from None

    def withdraw(self) -> None:
        """Take it back, if the server can be reached."""
        if self._server:
            try:
                self._ask("DELETE", self.name)
            except OSError:
                return

    def find(self, name: str) -> str:
        """Return the ``host:port`` of an engine. Raises TransferError."""
        if not self._server:
            return name
        try:
            found = json.loads(self._ask("GET", name))
            return f"{found['ip_or_host_name']}:{int(found['rpc_port'])}"
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise TransferError(f"{name}: {error}") from None

    def _ask(self, method: str, name: str, body: bytes | None = None) -> bytes:
        query = urllib.parse.urlencode({"key": f"mooncake/rpc_meta/{name}"})
        request = urllib.request.Request(f"{self._server}?{query}", body, method=method)
        with urllib.request.urlopen(request, timeout=REQUEST_S) as reply:
            answer: bytes = reply.read(ANSWER_BYTES_MAX)
        return answer
