"""Where configuration comes from: files, and the variables that Mooncake's users have set."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from moonpool.errors import ConfigError

FILE_BYTES_MAX = 1 << 20
MOONCAKE_VARIABLE = "MOONCAKE_CONFIG_PATH"


def read_file(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the top table of a .toml, .json, .yaml or .yml file, or raise ConfigError."""
    path = Path(path)
    try:
        if path.stat().st_size > FILE_BYTES_MAX:
            raise ConfigError(f"config: {path} is larger than {FILE_BYTES_MAX} bytes")
        raw = _parse(path.suffix.lower(), path.read_text("utf-8"))
    except OSError as error:
        raise ConfigError(f"config: {path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"config: {path} cannot be understood: {reason}") from None
    if not isinstance(raw, dict) or not all(isinstance(key, str) for key in raw):
        raise ConfigError(f"config: {path} holds no table of keys")
    return raw


def _parse(suffix: str, content: str) -> Any:
    if suffix == ".toml":
        return tomllib.loads(content)
    if suffix == ".json":
        return json.loads(content)
    if suffix in (".yaml", ".yml"):
        return _parse_yaml(content)
    raise ValueError("its name must end with .toml, .json, .yaml or .yml")


def _parse_yaml(content: str) -> Any:
    try:
        import yaml  # type: ignore[import-untyped,unused-ignore]
    except ImportError:
        raise ValueError("YAML needs the package PyYAML; TOML and JSON need nothing") from None
    try:
        return yaml.safe_load(content)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None


def shared_master(env: Mapping[str, str]) -> tuple[Any, str] | None:
    """Return (address, source) from the file that MOONCAKE_CONFIG_PATH names, or None."""
    path = env.get(MOONCAKE_VARIABLE)
    if not path:
        return None
    source = f"master_server_address in {MOONCAKE_VARIABLE}={path}"
    try:
        raw = json.loads(Path(path).read_text("utf-8"))
    except OSError as error:
        raise ConfigError(f"{MOONCAKE_VARIABLE}: {path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise ConfigError(f"{MOONCAKE_VARIABLE}: {path} is not JSON") from None
    if not isinstance(raw, dict) or not raw.get("master_server_address"):
        raise ConfigError(f"{MOONCAKE_VARIABLE}: {path} has no master_server_address")
    return raw["master_server_address"], source
