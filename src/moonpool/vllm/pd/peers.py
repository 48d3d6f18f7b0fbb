"""The peer connector: which are supported, how its configuration is made, how it is opened."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from moonpool import config_values as values
from moonpool.errors import ConfigError
from moonpool.vllm.pd import hosts
from moonpool.vllm.pd.params import Dialect

DIALECTS = {
    "NixlConnector": "nixl",
    "NixlPullConnector": "nixl",
    "MooncakeConnector": "mooncake",
}
MODULES = {"nixl": "nixl", "mooncake": "mooncake-transfer-engine"}
POOL = "MoonpoolConnector"


def _key(default: Any, check: values.Check, about: str) -> Any:
    return dataclasses.field(default=default, metadata={"check": check, "about": about})


@dataclass(frozen=True)
class PeerSettings:
    """The composite's own settings; the peer's are its own, the others are the pool's."""

    peer_timeout_s: float = _key(
        120.0, values.seconds, "a peer that takes longer to fill a request's blocks is given up"
    )
    peer_held_ratio: float = _key(
        0.75,
        values.fraction,
        "share of the KV cache that may wait for peers that fetch nothing or do not answer",
    )
    peer_hosts: tuple[str, ...] = _key(
        (),
        values.Check(hosts.parse, "a list of hosts and networks"),
        "hosts that requests may name; none: any",
    )


@dataclass(frozen=True)
class Plan:
    """vLLM's configuration as each of the two is given it."""

    settings: PeerSettings
    dialect: Dialect
    pool: Any
    peer: Any

    @property
    def peer_name(self) -> str:
        """The name of the peer's connector."""
        return str(self.peer.kv_transfer_config.kv_connector)


def describe() -> list[tuple[str, Any, str, str]]:
    """Return (key, default, allowed values, what it is) of the composite's own keys."""
    return [
        (f.name, f.default, f.metadata["check"].allowed, f.metadata["about"])
        for f in dataclasses.fields(PeerSettings)
    ]


def check_version(base: type) -> None:
    """Refuse a vLLM whose ``base`` of connectors cannot say that a request is to begin anew."""
    if not hasattr(base, "get_transfer_results"):
        raise ConfigError(
            "MoonpoolPDConnector does not support this vLLM: a request whose blocks a peer may "
            "still write to could not begin anew; install vLLM 0.30 or newer"
        )


def plan(vllm_config: Any) -> Plan:
    """Divide the configuration; raise ConfigError with one line that names the key."""
    transfer = vllm_config.kv_transfer_config
    extra = dict(transfer.kv_connector_extra_config)
    peer = _peer(extra.pop("peer", None))
    own = {f.name: f.metadata["check"] for f in dataclasses.fields(PeerSettings)}
    chosen = {key: _parse(key, extra.pop(key), own[key]) for key in own if key in extra}
    peer = {"kv_role": transfer.kv_role, "engine_id": transfer.engine_id, **peer}
    pool = {
        "kv_connector": POOL,
        "kv_role": transfer.kv_role,
        "engine_id": transfer.engine_id,
        "kv_connector_extra_config": extra,
    }
    dialect = Dialect(DIALECTS[peer["kv_connector"]], str(peer["kv_role"]))
    return Plan(PeerSettings(**chosen), dialect, _with(vllm_config, pool), _with(vllm_config, peer))


def _parse(key: str, value: Any, check: values.Check) -> Any:
    try:
        return check.parse(value)
    except (ValueError, TypeError):
        raise ConfigError(
            f"{key}: {value!r} (from kv_connector_extra_config) is not allowed; "
            f"allowed: {check.allowed}"
        ) from None


def _peer(peer: Any) -> dict[str, Any]:
    if not isinstance(peer, Mapping) or not all(isinstance(key, str) for key in peer):
        raise ConfigError(
            "peer: missing in kv_connector_extra_config; "
            'allowed: such as {"kv_connector":"NixlConnector","kv_role":"kv_consumer"}'
        )
    name = peer.get("kv_connector")
    if name not in DIALECTS:
        raise ConfigError(f"peer.kv_connector: {name!r}; allowed: {', '.join(sorted(DIALECTS))}")
    extra = peer.get("kv_connector_extra_config", {})
    if isinstance(extra, Mapping) and extra.get("bidirectional_kv_xfer"):
        raise ConfigError(
            "peer: bidirectional_kv_xfer is not supported; leave it out: "
            "what an instance generated comes from the pool"
        )
    return dict(peer)


def _with(vllm_config: Any, transfer: dict[str, Any]) -> Any:
    from vllm.config import KVTransferConfig

    changed = copy.copy(vllm_config)
    try:
        changed.kv_transfer_config = KVTransferConfig(**transfer)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"peer: {_line(error)} (from kv_connector_extra_config)") from None
    return changed


def peer_class(plan: Plan) -> Any:
    """Return the peer's class; ConfigError if it cannot be imported."""
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    try:
        return KVConnectorFactory.get_connector_class(plan.peer.kv_transfer_config)
    except Exception as error:
        raise _unusable(plan, error) from error


def open_peer(plan: Plan, role: Any, kv_cache_config: Any) -> Any:
    """Return the peer's connector; ConfigError if it cannot be made."""
    cls = peer_class(plan)
    try:
        return cls(plan.peer, role, kv_cache_config)
    except Exception as error:
        raise _unusable(plan, error) from error


def _unusable(plan: Plan, error: Exception) -> ConfigError:
    return ConfigError(
        f"peer: {plan.peer_name} cannot be used ({_line(error)}); "
        f"is {MODULES[plan.dialect.peer]} installed? "
        f"Without a peer take {POOL}"
    )


def _line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:200]}" if text else type(error).__name__
