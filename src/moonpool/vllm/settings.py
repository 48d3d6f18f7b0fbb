"""What the user may set: ``kv_connector_extra_config``, checked, with one line for each mistake."""

from __future__ import annotations

import dataclasses
import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from moonpool import config_values as values
from moonpool.config import resolve_master
from moonpool.config_values import Check
from moonpool.errors import ConfigError

ROLES = ("kv_both", "kv_producer", "kv_consumer")


def _zero_or_seconds(value: Any) -> float:
    return 0.0 if value in (0, "0") and not isinstance(value, bool) else values.seconds.parse(value)


def _key(default: Any, check: Check, about: str) -> Any:
    return dataclasses.field(default=default, metadata={"check": check, "about": about})


@dataclass(frozen=True)
class Settings:
    """The connector's settings. Times ending in ``_s`` are seconds, in ``_ms`` milliseconds."""

    master: str = _key("", values.text, "the master's host:port")
    engine: str = _key(
        "",
        values.one_of("", "moonpool", "mooncake"),
        "mooncake: the pool is the Mooncake cluster of that master; empty: as MOONPOOL_ENGINE says",
    )
    namespace: str = _key("", values.text, "engines share blocks only under the same text here")
    object_tokens: int = _key(256, values.number(1, 1 << 16), "tokens in an object of the pool")
    min_load_tokens: int = _key(
        0, values.number(0, 1 << 24), "hits shorter than this are recomputed; 0: one block"
    )
    cost_model: bool = _key(
        True, values.boolean, "recompute hits whose load takes several times as long as computing"
    )
    load_threads: int = _key(0, values.number(0, 64), "threads that load; 0: two")
    save_threads: int = _key(2, values.number(1, 64), "threads that save")
    lookup_wait_ms: int = _key(
        20, values.number(0, 10_000), "longest wait for lookups in one step of the engine"
    )
    load_timeout_s: float = _key(10.0, values.seconds, "a load that takes longer is recomputed")
    save_timeout_s: float = _key(10.0, values.seconds, "a save that takes longer is dropped")
    pinned_blocks_ratio: float = _key(
        0.5, values.fraction, "share of the KV cache that saves in progress may hold"
    )
    pd_wait_s: float = _key(
        5.0,
        Check(_zero_or_seconds, f"0, or {values.seconds.allowed}"),
        "longest time without progress or a sign of life of a prefill elsewhere; 0: never wait",
    )
    save_decode: bool = _key(True, values.boolean, "save what is generated, not only prompts")
    share_prefill_tokens: int = _key(
        0,
        values.number(0, 1 << 24),
        "prompts that lack so many tokens wait for another engine that computes them; 0: none",
    )
    save_near: bool = _key(
        True, values.boolean, "save in this host's memory while a node here has room"
    )
    head_shards: int = _key(
        0,
        values.number(0, 1024),
        "pieces of an object, each of so many KV heads; engines whose tensor_parallel_size differs "
        "share under the same number, a multiple of each; 0: tensor_parallel_size",
    )
    verify_loads: bool = _key(
        False,
        values.boolean,
        "compare what is loaded from this host's memory with its checksum, as what comes over a "
        "network always is",
    )
    mover: str = _key(
        "auto",
        values.one_of("auto", "process", "thread"),
        "where bytes move: a process beside the engine, or its threads; auto: process on a GPU",
    )
    pack_blocks: bool = _key(
        True, values.boolean, "ask vLLM to lay all layers of a block side by side in GPU memory"
    )
    transports: tuple[str, ...] = _key(
        ("shm", "tcp"),
        values.choice_of("shm", "tcp", "nixl", "mooncake"),
        "ways to a segment, the best first",
    )
    role: str = "kv_both"

    @property
    def saves(self) -> bool:
        """Whether this engine gives blocks to the pool; a pure consumer gives what it decodes,
        and the prompt before it, since a prefix with a gap is no use to anyone."""
        return self.role != "kv_consumer" or self.save_decode


def describe() -> list[tuple[str, Any, str, str]]:
    """Return (key, default, allowed values, what it is) of every key, for documents."""
    return [(f.name, f.default, f.metadata["check"].allowed, f.metadata["about"]) for f in _keys()]


def read(
    extra: Mapping[str, Any], role: str | None, env: Mapping[str, str] | None = None
) -> Settings:
    """Return the settings; raise ConfigError with one line that names the key.

    extra: ``kv_connector_extra_config``; role: ``kv_role``. The master's address is, in this
    order: ``master`` here, MOONPOOL_MASTER, MOONCAKE_CONFIG_PATH, the default.
    """
    environ = os.environ if env is None else env
    parsed = {key: _parse(key, value) for key, value in extra.items()}
    if role not in ROLES:
        raise ConfigError(f"kv_role: {role!r} is not allowed; allowed: {', '.join(ROLES)}")
    parsed["role"] = role
    parsed["master"] = resolve_master(parsed.get("master"), environ)
    return Settings(**parsed)


def _keys() -> list[dataclasses.Field[Any]]:
    return [f for f in dataclasses.fields(Settings) if "check" in f.metadata]


def _parse(key: str, value: Any) -> Any:
    checks: dict[str, Check] = {f.name: f.metadata["check"] for f in _keys()}
    if key not in checks:
        near = difflib.get_close_matches(key, list(checks), 1)
        hint = f"; did you mean {near[0]}?" if near else ";"
        raise ConfigError(
            f"{key}: no such key of kv_connector_extra_config{hint} "
            f"allowed: {', '.join(sorted(checks))}"
        )
    try:
        return checks[key].parse(value)
    except (ValueError, TypeError):
        raise ConfigError(
            f"{key}: {value!r} (from kv_connector_extra_config) is not allowed; "
            f"allowed: {checks[key].allowed}"
        ) from None
