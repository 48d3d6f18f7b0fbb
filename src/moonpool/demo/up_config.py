"""What ``moonpool up`` can be told; apart from what does it, so that ``--help`` stays fast."""

from __future__ import annotations

import contextlib
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
    prefill: int = _key(
        0, v.number(0, 64), "instead of replicas: how many processes that prefill for others"
    )
    decode: int = _key(0, v.number(0, 64), "and how many that decode what those prefill")
    model: str = _key("", v.text, "a model's directory; empty: a small random one, made here")
    alone: bool = _key(False, v.boolean, "no pool: vLLM by itself, to compare with")
    pool_size: int = _key(1 << 30, v.size, "memory given to the pool")
    ssd: str = _key(
        "", v.text, "a directory on an SSD for a second tier of the pool, DIR or DIR:SIZE"
    )
    ssd_save_s: float = _key(
        15.0,
        v.seconds_or_none,
        "how long, at the end, to write there what is in memory only; 0: not at all",
    )
    eviction: str = _key(
        "leaf-lru",
        v.one_of("lru", "leaf-lru", "s3fifo", "arc", "cost"),
        "what goes first when the pool is full",
    )
    engine_kv_size: int = _key(512 << 20, v.size, "memory for KV of each replica")
    context_tokens: int = _key(8192, v.number(64, 1 << 20), "longest prompt and answer together")
    sequences: int = _key(8, v.number(1, 1024), "requests that a replica answers at a time")

    def disk(self) -> dict[str, Any]:
        """Return the node's keys for its disk; none if it has none."""
        if not self.ssd:
            return {}
        save = {"ssd_save_s": self.ssd_save_s}
        directory, colon, size = self.ssd.rpartition(":")
        if colon and directory:
            with contextlib.suppress(ValueError):
                return {"ssd": directory, "ssd_size": v.parse_size(size), **save}
        return {"ssd": self.ssd, **save}

    def checked(self) -> None:
        """Raise ConfigError for a model that is not there, and for half a split."""
        if bool(self.prefill) != bool(self.decode):
            given, other = ("prefill", "decode") if self.prefill else ("decode", "prefill")
            raise ConfigError(f"{given}: needs {other} as well; allowed: 1 to 64 of both, or none")
        if self.alone and self.prefill:
            raise ConfigError("alone: KV is handed over through the pool; allowed: no prefill")
        if self.model and not (Path(self.model) / "config.json").is_file():
            raise ConfigError(f"model: {self.model} has no config.json; allowed: a model directory")
