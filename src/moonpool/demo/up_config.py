"""What ``moonpool up`` can be told; apart from what does it, so that ``--help`` stays fast."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from moonpool import config_values as v
from moonpool.config import ROUTER_PORT, RoleConfig
from moonpool.config_values import Check
from moonpool.errors import ConfigError


def _key(default: Any, check: Check, about: str) -> Any:
    return dataclasses.field(default=default, metadata={"check": check, "about": about})


@dataclass(frozen=True)
class UpConfig(RoleConfig):
    """What ``moonpool up`` starts. Sizes are bytes."""

    role: ClassVar[str] = "up"

    host: str = _key("127.0.0.1", v.text, "address of the API")
    port: int = _key(ROUTER_PORT, v.port, "port of the API; 0 lets the system choose")
    replicas: int = _key(2, v.number(1, 64), "how many vLLM processes")
    model: str = _key("", v.text, "a model's directory; empty: a small random one, made here")
    pool_size: int = _key(1 << 30, v.size, "memory given to the pool")
    engine_kv_size: int = _key(512 << 20, v.size, "memory for KV of each replica")
    context_tokens: int = _key(8192, v.number(64, 1 << 20), "longest prompt and answer together")
    sequences: int = _key(8, v.number(1, 1024), "requests that a replica answers at a time")

    def checked(self) -> None:
        """Raise ConfigError for a model that is not there."""
        if self.model and not (Path(self.model) / "config.json").is_file():
            raise ConfigError(f"model: {self.model} has no config.json; allowed: a model directory")
