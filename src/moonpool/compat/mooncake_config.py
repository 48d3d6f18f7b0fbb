"""MooncakeConfig: the configuration file and variables of programs that use Mooncake."""

from __future__ import annotations

import json
import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moonpool.compat.arguments import PROTOCOLS

DEFAULT_GLOBAL_SEGMENT_SIZE = 3_355_443_200
DEFAULT_LOCAL_BUFFER_SIZE = 1 << 30
HTTP_PORT = 9300
_REQUIRED = ("local_hostname", "metadata_server", "master_server_address")
_SIZES = ("global_segment_size", "local_buffer_size")
_UNITS = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_TRUE = ("true", "1", "yes", "on", "enable")
_FALSE = ("", "false", "0", "no", "off", "disable")
_log = logging.getLogger(__name__)


@dataclass
class MooncakeConfig:
    """What a client needs to know. Sizes are bytes. Raises ValueError for what cannot be."""

    local_hostname: str
    metadata_server: str
    global_segment_size: int
    local_buffer_size: int
    protocol: str
    device_name: str | None
    master_server_address: str
    enable_ssd_offload: bool = False
    ssd_offload_path: str = ""
    tenant_id: str = "default"
    enable_client_http_server: bool = False
    client_http_port: int = HTTP_PORT

    def __post_init__(self) -> None:
        if not isinstance(self.protocol, str) or not self.protocol.strip():
            raise ValueError(f"protocol: {self.protocol!r} is not allowed; such as 'tcp' or 'rdma'")
        self.protocol = self.protocol.strip().lower()
        if self.protocol not in PROTOCOLS:
            known = ", ".join(sorted(PROTOCOLS))
            _log.warning("protocol %r is not known; these are: %s", self.protocol, known)
        for name in _SIZES:
            if getattr(self, name) < 0:
                raise ValueError(f"{name}: {getattr(self, name)} is below 0")
        for name in _REQUIRED:
            value = getattr(self, name)
            if not isinstance(value, str) or not value.strip():
                raise ValueError(f"{name}: {value!r} must be text that is not empty")

    @staticmethod
    def from_file(file_path: str) -> MooncakeConfig:
        """Return the configuration of a JSON file. Raises ValueError, OSError."""
        found = json.loads(Path(file_path).read_text())
        for name in _REQUIRED:
            if name not in found:
                raise ValueError(f"Missing required config field: {name}")
        return _made(found)

    @staticmethod
    def load_from_env() -> MooncakeConfig:
        """Return that of the file MOONCAKE_CONFIG_PATH, or of MOONCAKE_MASTER and other variables.
        Raises ValueError, OSError."""
        path = os.environ.get("MOONCAKE_CONFIG_PATH")
        if path is not None:
            return MooncakeConfig.from_file(path)
        if not os.environ.get("MOONCAKE_MASTER"):
            raise ValueError("neither MOONCAKE_CONFIG_PATH nor MOONCAKE_MASTER is set")
        found = {key: os.environ[name] for key, name in _VARIABLES.items() if name in os.environ}
        return _made({"local_hostname": "localhost", "metadata_server": "P2PHANDSHAKE", **found})


_VARIABLES = {
    "local_hostname": "MOONCAKE_LOCAL_HOSTNAME",
    "metadata_server": "MOONCAKE_TE_META_DATA_SERVER",
    "global_segment_size": "MOONCAKE_GLOBAL_SEGMENT_SIZE",
    "local_buffer_size": "MOONCAKE_LOCAL_BUFFER_SIZE",
    "protocol": "MOONCAKE_PROTOCOL",
    "device_name": "MOONCAKE_DEVICE",
    "master_server_address": "MOONCAKE_MASTER",
    "enable_ssd_offload": "MOONCAKE_OFFLOAD_ENABLED",
    "ssd_offload_path": "MOONCAKE_OFFLOAD_FILE_STORAGE_PATH",
    "tenant_id": "MOONCAKE_TENANT_ID",
    "enable_client_http_server": "MOONCAKE_ENABLE_CLIENT_HTTP_SERVER",
    "client_http_port": "MOONCAKE_CLIENT_HTTP_PORT",
}


def _made(found: dict[str, Any]) -> MooncakeConfig:
    return MooncakeConfig(
        local_hostname=found["local_hostname"],
        metadata_server=found["metadata_server"],
        global_segment_size=_size(found.get("global_segment_size", DEFAULT_GLOBAL_SEGMENT_SIZE)),
        local_buffer_size=_size(found.get("local_buffer_size", DEFAULT_LOCAL_BUFFER_SIZE)),
        protocol=found.get("protocol", "tcp"),
        device_name=found.get("device_name", ""),
        master_server_address=found["master_server_address"],
        enable_ssd_offload=_truth(found.get("enable_ssd_offload", False)),
        ssd_offload_path=_text(found.get("ssd_offload_path"), ""),
        tenant_id=_text(found.get("tenant_id"), "default"),
        enable_client_http_server=_truth(found.get("enable_client_http_server", False)),
        client_http_port=int(found.get("client_http_port", HTTP_PORT)),
    )


def _text(value: Any, default: str) -> str:
    return default if value is None else str(value)


def _size(value: Any) -> int:
    """Return bytes of a number or of text such as "4GB" or "1.5g"."""
    if not isinstance(value, str):
        return int(value)
    digits = value.strip().lower()
    if not digits:
        raise ValueError("a size must not be empty")
    plain = digits.removesuffix("b")
    unit = _UNITS.get(plain[-1:], 1)
    number = plain[:-1] if plain[-1:] in _UNITS else plain
    if not number.strip():
        raise ValueError(f"{value!r} is a unit without a number")
    return int(float(number) * unit)


def _truth(value: Any) -> bool:
    if isinstance(value, bool | int | float) or value is None:
        return bool(value)
    text = str(value).strip().lower()
    if text not in _TRUE + _FALSE:
        raise ValueError(f"{value!r} is neither true nor false")
    return text in _TRUE
