"""The arguments of ``setup``, one by one or as a dict."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from moonpool.compat.casting import (
    REQUIRED,
    CastError,
    Parameter,
    anything,
    boolean,
    i32,
    text,
    u64,
)
from moonpool.compat.codes import INTERNAL, INVALID
from moonpool.compat.connected import Setup
from moonpool.core.tenants import DEFAULT_TENANT

SETUP = (
    Parameter("local_hostname", text),
    Parameter("metadata_server", text),
    Parameter("global_segment_size", u64),
    Parameter("local_buffer_size", u64),
    Parameter("protocol", text),
    Parameter("rdma_devices", text),
    Parameter("master_server_addr", text),
    Parameter("engine", anything, None),
    Parameter("enable_ssd_offload", boolean, False),
    Parameter("ssd_offload_path", text, ""),
    Parameter("tenant_id", text, DEFAULT_TENANT),
    Parameter("enable_client_http_server", boolean, False),
    Parameter("client_http_port", i32, 9300),
)
SIZE_MIN = 1024
SIZE_CHARS_MAX = 20
BUFFER_MAX = 1 << 40
SEGMENT_MAX = 1 << 42
DEFAULT_SIZE = 16 << 20
DEFAULT_MASTER = "127.0.0.1:50051"
PROTOCOLS = frozenset(
    ("tcp", "rdma", "efa", "nvmeof", "nvlink", "musa", "nvlink_intra", "hip", "barex", "cxl")
) | frozenset(("ascend", "ub", "ubshmem", "maca", "sunrise_link", "rpc_only"))
_UNITS = {"": 1, "b": 1, "k": 1 << 10, "kb": 1 << 10, "m": 1 << 20, "mb": 1 << 20}
_UNITS |= {"g": 1 << 30, "gb": 1 << 30, "t": 1 << 40, "tb": 1 << 40}


def setup_of(args: Sequence[Any], named: dict[str, Any]) -> Setup | int:
    """Return what was asked for, or the code of what can never be. Raises CastError."""
    if len(args) + len(named) == 1 and not set(named) - {"config"}:
        return _from_dict(args[0] if args else named["config"])
    values = dict(zip((each.name for each in SETUP), args, strict=False))
    if len(args) > len(SETUP) or set(values) & set(named):
        raise CastError
    values |= named
    found = {each.name: each.cast(values.pop(each.name, each.default)) for each in _checked(values)}
    return _checked_setup(found)


def _checked(values: dict[str, Any]) -> Sequence[Parameter]:
    if set(values) - {each.name for each in SETUP}:
        raise CastError
    if any(each.default is REQUIRED and each.name not in values for each in SETUP):
        raise CastError
    return SETUP


def _from_dict(config: Any) -> Setup | int:
    if not isinstance(config, dict):
        raise CastError
    values = {str(key): _as_text(value) for key, value in config.items()}
    if not values.get("local_hostname") or "metadata_server" not in values:
        return INVALID
    sizes = {}
    for name in ("global_segment_size", "local_buffer_size"):
        size = _size(values.get(name, str(DEFAULT_SIZE)))
        if size is None:
            return INVALID
        sizes[name] = size
    return _checked_setup(
        {
            **sizes,
            "local_hostname": values["local_hostname"],
            "metadata_server": values["metadata_server"],
            "protocol": values.get("protocol", "tcp"),
            "rdma_devices": values.get("rdma_devices", ""),
            "master_server_addr": values.get("master_server_addr", DEFAULT_MASTER),
            "tenant_id": values.get("tenant_id", DEFAULT_TENANT),
        }
    )


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else str(value)


def _size(value: str) -> int | None:
    """Return the bytes of a whole number with or without a unit, None for anything else."""
    digits = value.strip().lower()
    number = digits.rstrip("bkmgt ")
    unit = digits[len(number) :].strip()
    known = number.isascii() and number.isdecimal() and len(number) <= SIZE_CHARS_MAX
    if not known or unit not in _UNITS:
        return None
    return int(number) * _UNITS[unit]


def _checked_setup(found: dict[str, Any]) -> Setup | int:
    engine = found.get("engine")
    if engine is not None and not hasattr(engine, "get_engine"):
        raise RuntimeError(f"{type(engine).__name__} is no transfer engine")
    segment, buffer = found["global_segment_size"], found["local_buffer_size"]
    if not found["local_hostname"] or 0 < segment < SIZE_MIN or segment > SEGMENT_MAX:
        return INVALID
    if buffer > BUFFER_MAX or not 0 <= found.get("client_http_port", 9300) < 1 << 16:
        return INVALID
    if found["protocol"] not in PROTOCOLS or not found["metadata_server"]:
        return INTERNAL
    names = Setup.__dataclass_fields__
    return Setup(**{name: value for name, value in found.items() if name in names})
