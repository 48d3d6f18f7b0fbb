"""Configuration: one typed, frozen class per role, read from several sources.

In rising priority: defaults, ``--config FILE`` (TOML, JSON, or YAML where PyYAML is installed),
environment variables, flags: what is typed wins over what lies about. A file may hold one role's
keys, or a table for each role. A variable is ``MOONPOOL_<ROLE>_<KEY>``; ``master``, ``ha``,
``token`` and ``engine`` of any role are also ``MOONPOOL_MASTER`` and so on. Of ``ha`` and
``master`` the one from the stronger source counts, ``ha`` if they are from the same.
Whatever is wrong is a ConfigError of one line that names the key and the values it may have.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from moonpool import config_ha
from moonpool import config_values as v
from moonpool.config_sources import read_file, shared_master
from moonpool.config_values import Check
from moonpool.errors import ConfigError

MASTER_PORT = 50051
MASTER_HTTP_PORT = 9003
NODE_PORT = 50053
ROUTER_PORT = 8000
MASTER_ADDRESS = f"127.0.0.1:{MASTER_PORT}"

ENV_PREFIX = "MOONPOOL_"
_SHARED_KEYS = ("master", "ha", "token", "engine")
_SERVICE_LINK = re.compile(r"_SERVICE_(HOST|PORT)|_PORT_\d+_(TCP|UDP)")

C = TypeVar("C", bound="RoleConfig")


def _key(default: Any, check: Check, about: str) -> Any:
    return dataclasses.field(default=default, metadata={"check": check, "about": about})


def default_segment_dir() -> str:
    """Return the directory of this user's segments in shared memory."""
    return f"/dev/shm/moonpool-{os.getuid()}"


@dataclass(frozen=True)
class RoleConfig:
    """Base of the roles' configurations; ``role`` is the table and the variables' prefix."""

    role: ClassVar[str] = ""

    def checked(self) -> None:
        """Raise ConfigError for values that are fine alone but not together."""


@dataclass(frozen=True)
class MasterConfig(RoleConfig):
    """The master service. Times are seconds, watermarks are shares of the pool's bytes."""

    role: ClassVar[str] = "master"

    host: str = _key("127.0.0.1", v.text, "address to listen on")
    port: int = _key(MASTER_PORT, v.port, "port for clients and nodes; 0 lets the system choose")
    http_host: str = _key("", v.text, "address of the HTTP side; empty: the same as host")
    http_port: int = _key(MASTER_HTTP_PORT, v.port, "port for /metrics, /health and /status")
    watermark_high: float = _key(0.95, v.fraction, "eviction starts at this share of a segment")
    watermark_low: float = _key(0.90, v.fraction, "and goes on down to this one")
    eviction: str = _key(
        "leaf-lru",
        v.one_of("lru", "leaf-lru", "s3fifo", "arc", "cost"),
        "what goes first when room is needed",
    )
    tenant_quotas: str = _key(
        "",
        v.text,
        "YAML file of the Mooncake API's tenants with their quotas, or memory: only those may put",
    )
    put_timeout_s: float = _key(30.0, v.seconds, "a put that was not ended is given up after this")
    kv_lease_s: float = _key(
        10.0, v.seconds, "how long clients of the Mooncake API lease what they read or ask for"
    )
    soft_pin_s: float = _key(1800.0, v.seconds, "how long a soft pin lasts if its put does not say")
    soft_pin_s_max: float = _key(86_400.0, v.seconds, "the longest that a put may say")
    hard_pin_share: float = _key(
        0.5, v.fraction, "share of the pool that may be pinned for good; eviction has the rest"
    )
    evict_soft_pinned: bool = _key(
        True, v.boolean, "evict soft-pinned objects where nothing else is left"
    )
    client_ttl_s: float = _key(
        10.0, v.seconds, "a peer whose host answers nothing for so long is taken for gone"
    )
    summary_s: float = _key(
        0.0, v.seconds_or_none, "time between two lines in the log of what happened; 0: none"
    )
    copy_rate: int = _key(
        10**9, v.rate, "most bytes a second that are copied from node to node; 0: any"
    )
    hot_reads_per_s: int = _key(
        20, v.number(0, 1 << 20), "an object read more often is copied to more hosts; 0: never"
    )
    hot_copies_max: int = _key(2, v.number(0, 7), "to so many more at most")
    repair_after_s: float = _key(
        5.0, v.seconds, "how long a host may be away before its share of replicas is made anew"
    )
    token: str = _key("", v.text, "what peers must say before they may change anything")
    board_dir: str = _key(
        "", v.text, "directory of the table that clients here look up; empty: as segment_dir"
    )
    ready_file: str = _key("", v.new_file, "file that gets the chosen ports as JSON once listening")
    ha: str = _key(
        "", config_ha.store, "where several masters elect their leader; empty: this one is alone"
    )
    ha_lease: float = _key(
        3.0, config_ha.lease_s, "seconds after which a leader of which nothing is heard is replaced"
    )
    advertise: str = _key(
        "", v.text, "with ha: host[:port] that others reach this master at; empty: host:port"
    )

    def checked(self) -> None:
        """Raise ConfigError unless watermark_low <= watermark_high."""
        if self.watermark_low > self.watermark_high:
            raise ConfigError(
                f"watermark_low: {self.watermark_low} is above watermark_high "
                f"{self.watermark_high}; 0 to {self.watermark_high} are allowed"
            )
        if self.soft_pin_s > self.soft_pin_s_max:
            raise ConfigError(
                f"soft_pin_s: {self.soft_pin_s} is above soft_pin_s_max {self.soft_pin_s_max}"
            )


@dataclass(frozen=True)
class EngineConfig(RoleConfig):
    """What nodes and clients say about engines that move bytes one-sidedly; see transports.md."""

    nixl_backends: tuple[str, ...] = _key(("UCX",), v.texts, "NIXL's backends, such as UCX")
    nixl_ucx: tuple[str, ...] = _key(
        (), v.settings_of("UCX_"), "settings of UCX, such as UCX_TLS=rc,cuda"
    )
    nixl_devices: tuple[str, ...] = _key(
        (), v.texts, "NICs for UCX, such as mlx5_0:1; empty: the nearest ones"
    )
    mooncake_protocol: str = _key(
        "tcp", v.one_of("tcp", "rdma"), "protocol of Mooncake's TransferEngine"
    )
    mooncake_devices: tuple[str, ...] = _key(
        (), v.texts, "NICs for Mooncake with rdma; empty: the nearest ones"
    )


@dataclass(frozen=True)
class NodeConfig(EngineConfig):
    """A host's storage daemon. Sizes are bytes."""

    role: ClassVar[str] = "node"

    name: str = _key(
        "", v.text, "unique in the pool and the same after a restart; empty: the host's"
    )
    master: str = _key(
        MASTER_ADDRESS, config_ha.masters, "the master's host:port, or several with commas"
    )
    ha: str = _key(
        "", config_ha.store, "where masters elect their leader; empty: master says where they are"
    )
    host: str = _key("127.0.0.1", v.text, "address to listen on")
    port: int = _key(NODE_PORT, v.port, "port of the data server; 0 lets the system choose")
    advertise: str = _key(
        "", v.text, "host[:port] that others reach this node at; empty: host:port"
    )
    size: int = _key(1 << 30, v.size, "memory given to the pool")
    segment_size: int = _key(1 << 40, v.size, "largest size of one segment")
    object_size: int = _key(
        64 << 10,
        v.size,
        "expected size of objects, 4KB or more: the tables are made for so many as fit",
    )
    segment_dir: str = _key(
        "", v.text, "directory of segment files; empty: /dev/shm/moonpool-<uid>"
    )
    engines: tuple[str, ...] = _key(
        (), v.some_of("nixl", "mooncake"), "ways offered to clients beside shm and tcp"
    )
    touch_ahead: bool = _key(True, v.boolean, "touch the memory in the background ahead of use")
    huge_pages: bool = _key(
        True, v.boolean, "make it of huge pages then, as far as the kernel has them"
    )
    ssd: str = _key(
        "",
        v.text,
        "directory on an SSD for a second tier, or an fsspec URL such as s3://bucket/dir",
    )
    ssd_size: int = _key(64 << 30, v.size, "space given to it")
    ssd_policy: str = _key(
        "on-evict",
        v.one_of("on-evict", "write-through", "selective"),
        "when objects go there: before they leave memory, at once, or the former if seen twice",
    )
    ssd_write_rate: int = _key(0, v.rate, "most bytes a second that are written there; 0: any")
    ssd_save_s: float = _key(
        15.0,
        v.seconds_or_none,
        "how long, at a clean end, to write there what is in memory only; 0: not at all",
    )
    token: str = _key("", v.text, "the master's token")
    ready_file: str = _key("", v.new_file, "file that gets the chosen port as JSON once mounted")


@dataclass(frozen=True)
class ClientConfig(EngineConfig):
    """What a Store needs to know. Times are seconds."""

    role: ClassVar[str] = "client"

    master: str = _key(
        MASTER_ADDRESS, config_ha.masters, "the master's host:port, or several with commas"
    )
    ha: str = _key(
        "", config_ha.store, "where masters elect their leader; empty: master says where they are"
    )
    name: str = _key("", v.text, "shown to people; empty: the process's id")
    engine: str = _key(
        "moonpool",
        v.one_of("moonpool", "mooncake"),
        "what the pool is: a moonpool, or a Mooncake cluster whose mooncake_master master names",
    )
    mooncake_metadata: str = _key(
        "P2PHANDSHAKE",
        v.text,
        "metadata server of a Mooncake cluster, such as http://HOST:8080/...",
    )
    mooncake_admin: str = _key(
        "", v.text, "host:port of mooncake_master's HTTP side; empty: port 9003 of its host"
    )
    mooncake_hostname: str = _key(
        "", v.text, "name under which a Mooncake cluster reaches this process; empty: found out"
    )
    mooncake_tenant: str = _key("", v.text, "tenant in a Mooncake cluster; empty: the default one")
    mooncake_buffer: int = _key(64 << 20, v.size, "memory of the Mooncake client's own")
    transports: tuple[str, ...] = _key(
        ("shm", "tcp"),
        v.choice_of("shm", "tcp", "nixl", "mooncake"),
        "ways to a segment, the best first",
    )
    staging: int = _key(256 << 20, v.size, "memory through which nixl and mooncake move bytes")
    timeout_s: float = _key(5.0, v.seconds, "deadline of a call")
    put_timeout_s: float = _key(5.0, v.seconds, "how long a put waits for space")
    lease_s: float = _key(10.0, v.seconds, "how long a read may take before its bytes are void")
    connections: int = _key(4, v.number(1, 64), "connections to the master, at most")
    token: str = _key("", v.text, "the master's token")


@dataclass(frozen=True)
class RouterConfig(RoleConfig):
    """The OpenAI-compatible front."""

    role: ClassVar[str] = "router"

    host: str = _key("127.0.0.1", v.text, "address to listen on")
    port: int = _key(ROUTER_PORT, v.port, "port of the API; 0 lets the system choose")
    backends: tuple[str, ...] = _key((), v.texts, "base URLs of the engines")
    timeout_s: float = _key(600.0, v.seconds, "longest silence of an engine")
    policy: str = _key(
        "prefix",
        v.one_of("prefix", "session", "least_loaded", "round_robin"),
        "which engine gets a request: prefix, session, least_loaded or round_robin",
    )
    admin_api_key: str = _key(
        "", v.text, "what POST /instances/... must say; also ADMIN_API_KEY; empty: never allowed"
    )
    health_s: float = _key(5.0, v.seconds, "time between two health checks")
    session_header: str = _key("X-Session-ID", v.text, "header that names a conversation")
    in_flight: int = _key(4096, v.number(1, 1 << 20), "requests in flight at a time")
    instance_in_flight: int = _key(
        0, v.number(0, 1 << 20), "the same for each engine that is up; 0: any number"
    )
    queue: int = _key(1024, v.number(0, 1 << 20), "requests that may wait for their turn")
    queue_timeout_s: float = _key(30.0, v.seconds, "how long one may wait")
    rate_limit: int = _key(
        0, v.number(0, 1 << 30), "requests a minute for each known key or address; 0: any number"
    )
    rate_keys: tuple[str, ...] = _key(
        (), v.texts, "API keys that are counted by themselves, wherever they come from"
    )
    rate_burst: int = _key(60, v.number(1, 1 << 20), "of these, how many at once")
    body_size: int = _key(64 << 20, v.size, "largest request")
    body_timeout_s: float = _key(60.0, v.seconds, "how long a client may take to send it")
    discovery: str = _key(
        "", v.text, "who else names engines: file:PATH or kubernetes:NAMESPACE/SERVICE[:PORT]"
    )
    tokenizer: str = _key(
        "auto", v.text, "where token ids come from: auto, instance, text, or a model's directory"
    )
    hash_algorithm: str = _key("", v.text, "sha256 or sha256_cbor; empty: as the engines say")
    hash_seed: str = _key("", v.text, "the engines' PYTHONHASHSEED, if they have one")
    block_tokens: int = _key(0, v.number(0, 1 << 16), "tokens of a block; 0: as the engines say")
    kv_events: bool = _key(True, v.boolean, "follow the engines' KV events where they publish them")
    master: str = _key(
        "", config_ha.masters, "the pool's master, host:port; empty: no pool is asked"
    )
    pool_namespace: str = _key("", v.text, "the engines' namespace in the pool; empty: look for it")
    object_tokens: int = _key(256, v.number(1, 1 << 16), "tokens in an object of the pool")
    prefill: tuple[str, ...] = _key(
        (), v.texts, "base URLs of engines that only prefill: URL [BOOTSTRAP_PORT_OR_URL]"
    )
    decode: tuple[str, ...] = _key((), v.texts, "base URLs of engines that only decode")
    pd: str = _key(
        "auto",
        v.one_of("auto", "pool", "mooncake", "nixl"),
        "how KV gets from one to the other: auto, pool, mooncake or nixl",
    )
    bypass_tokens: int = _key(
        2048, v.number(0, 1 << 20), "so many tokens the decoding engine may prefill for itself"
    )
    prefill_timeout_s: float = _key(120.0, v.seconds, "how long a prefill may take")
    record: str = _key(
        "", v.text, "write a trace of what passes through here: lengths, times, keyed hashes"
    )
    record_key_file: str = _key(
        "", v.text, "file with the hashes' secret, 16 bytes or more; empty: a new one"
    )
    record_size: int = _key(1 << 30, v.size, "how large the trace may grow")


ROLES: dict[str, type[RoleConfig]] = {
    cls.role: cls for cls in (MasterConfig, NodeConfig, ClientConfig, RouterConfig)
}


def load(
    cls: type[C],
    *,
    file: str | os.PathLike[str] | None = None,
    flags: Mapping[str, Any] | None = None,
    env: Mapping[str, str] | None = None,
) -> C:
    """Return the role's configuration.

    file: TOML, JSON or YAML. flags: key to value; None means that the flag was not given.
    env: the environment (``os.environ`` when None). Raises ConfigError.
    """
    environ = os.environ if env is None else env
    found: dict[str, tuple[Any, str]] = {}
    if file is not None:
        raw = _role_table(cls, read_file(file), str(file))
        found |= {key: (value, str(file)) for key, value in raw.items()}
    found |= _from_env(cls, environ)
    for key, value in (flags or {}).items():
        if value is not None:
            found[key] = (value, f"--{key.replace('_', '-')}")
    if "master" in _keys(cls) and "master" not in found:
        shared = shared_master(environ)
        if shared is not None:
            found["master"] = shared
    if "ha" in found and _rank(found.get("master")) > _rank(found["ha"]):
        del found["ha"]
    return _build(cls, found)


def _rank(found: tuple[Any, str] | None) -> int:
    """Return how strong the source of a value is."""
    source = "" if found is None else found[1]
    return 3 if source.startswith("--") else 2 if source.startswith(ENV_PREFIX) else bool(source)


def resolve_master(explicit: str | None = None, env: Mapping[str, str] | None = None) -> str:
    """Return where the master is: ``explicit``, else MOONPOOL_HA, else MOONPOOL_MASTER, else
    ``master_server_address`` of the JSON file that MOONCAKE_CONFIG_PATH names, else the default.

    It is ``host:port``, several of them with commas, or the store of an election.
    """
    environ = os.environ if env is None else env
    value, source = MASTER_ADDRESS, "default"
    if explicit:
        value, source = explicit, "argument"
    elif environ.get(ENV_PREFIX + "HA"):
        value, source = environ[ENV_PREFIX + "HA"], ENV_PREFIX + "HA"
    elif environ.get(ENV_PREFIX + "MASTER"):
        value, source = environ[ENV_PREFIX + "MASTER"], ENV_PREFIX + "MASTER"
    else:
        value, source = shared_master(environ) or (value, source)
    return str(_checked("master", config_ha.masters, value, source))


def describe(cls: type[RoleConfig]) -> list[tuple[str, Any, str, str]]:
    """Return (key, default, allowed values, what it is) of a role, for help texts."""
    return [
        (f.name, f.default, f.metadata["check"].allowed, f.metadata["about"])
        for f in dataclasses.fields(cls)
    ]


def _keys(cls: type[RoleConfig]) -> dict[str, Check]:
    return {f.name: f.metadata["check"] for f in dataclasses.fields(cls)}


def _checked(key: str, check: Check, value: Any, source: str) -> Any:
    try:
        return check.parse(value)
    except (ValueError, TypeError):
        raise ConfigError(
            f"{key}: {value!r} (from {source}) is not allowed; allowed: {check.allowed}"
        ) from None


def _build(cls: type[C], found: Mapping[str, tuple[Any, str]]) -> C:
    checks = _keys(cls)
    parsed: dict[str, Any] = {}
    for key, (value, source) in found.items():
        if key not in checks:
            raise _unknown(cls, key, source)
        parsed[key] = _checked(key, checks[key], value, source)
    config = cls(**parsed)
    config.checked()
    return config


def _unknown(cls: type[RoleConfig], key: str, source: str) -> ConfigError:
    keys = sorted(_keys(cls))
    near = difflib.get_close_matches(key, keys, 1)
    hint = f"; did you mean {near[0]}?" if near else ";"
    return ConfigError(
        f"{key}: no such key of {cls.role} (from {source}){hint} allowed: {', '.join(keys)}"
    )


def _role_table(cls: type[RoleConfig], raw: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Return the role's keys; other roles' tables are theirs."""
    own: dict[str, Any] = {}
    for key, value in raw.items():
        if isinstance(value, Mapping) and key in ROLES:
            if key == cls.role:
                own |= value
        elif isinstance(value, Mapping):
            near = difflib.get_close_matches(key, list(ROLES), 1)
            hint = f"; did you mean {near[0]}?" if near else ";"
            raise ConfigError(
                f"{key}: no such table (in {source}){hint} allowed: {', '.join(ROLES)}"
            )
        else:
            own[key] = value
    return own


def _from_env(cls: type[RoleConfig], env: Mapping[str, str]) -> dict[str, tuple[Any, str]]:
    checks = _keys(cls)
    found: dict[str, tuple[Any, str]] = {}
    for key in _SHARED_KEYS:
        name = ENV_PREFIX + key.upper()
        if key in checks and env.get(name):
            found[key] = (env[name], name)
    prefix = f"{ENV_PREFIX}{cls.role.upper()}_"
    for name, value in env.items():
        # Kubernetes injects such variables for a service that happens to be called like a role.
        linked = _SERVICE_LINK.search(name) or value.startswith(("tcp://", "udp://"))
        if name.startswith(prefix) and value and not linked:
            found[name[len(prefix) :].lower()] = (value, name)
    return found
