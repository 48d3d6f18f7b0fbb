"""The router made of its configuration."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from moonpool.config import RouterConfig
from moonpool.errors import ConfigError
from moonpool.router import policy, record, subscribe
from moonpool.router.admission import Limits
from moonpool.router.blockhash import hash_function
from moonpool.router.blocks import TEXT, BlockPrompts
from moonpool.router.discovery import FileSource, Source
from moonpool.router.front import Front
from moonpool.router.index import PrefixIndex
from moonpool.router.instance import DECODE, PREFILL
from moonpool.router.kubernetes import HttpSliceApi, KubernetesSource, parse_service
from moonpool.router.members import Named, named
from moonpool.router.options import Options
from moonpool.router.pd_params import MOONCAKE
from moonpool.router.pool import StorePool

ADMIN_VARIABLE = "ADMIN_API_KEY"
# What a running router keeps: its sockets, and what it has built its knowledge with.
FIXED = (
    "host", "port", "timeout_s", "discovery", "tokenizer", "hash_algorithm", "hash_seed",
    "block_tokens", "kv_events", "master", "pool_namespace", "object_tokens",
    "record", "record_key_file", "record_size",
)  # fmt: skip

log = logging.getLogger("moonpool.router")


def options_of(config: RouterConfig) -> Options:
    """Return the front's options."""
    return Options(
        idle_timeout_s=config.timeout_s,
        body_timeout_s=config.body_timeout_s,
        body_bytes=config.body_size,
        admin_key=config.admin_api_key or os.environ.get(ADMIN_VARIABLE, ""),
        session_header=config.session_header,
        health_s=config.health_s,
        pd=config.pd,
        bypass_tokens=config.bypass_tokens,
        prefill_timeout_s=config.prefill_timeout_s,
        limits=Limits(
            in_flight=config.in_flight,
            per_instance=config.instance_in_flight,
            queue=config.queue,
            queue_s=config.queue_timeout_s,
            rate_per_minute=config.rate_limit,
            rate_burst=config.rate_burst,
            rate_keys=frozenset(config.rate_keys),
        ),
    )


def front_of(config: RouterConfig) -> Front:
    """Return a front that does what the configuration says; raise ConfigError."""
    members = members_of(config)
    index = PrefixIndex()
    chosen = policy.create(config.policy, index)
    front = Front(members, chosen, options=options_of(config), index=index)
    if chosen.needs_prompt or config.record:
        _add_knowledge(front, config)
    if config.record:
        key = record.key_of(config.record_key_file)
        front.recorder = record.Recorder(Path(config.record), key, config.record_size)
    source = source_of(config.discovery)
    if source is not None:
        name = source.name
        front.background.append(
            lambda: source.run(lambda found: front.replace_instances(found, name))
        )
    return front


def _add_knowledge(front: Front, config: RouterConfig) -> None:
    """Let the front know prompts as tokens, follow KV events, and ask the pool."""
    if config.hash_algorithm:
        hash_function(config.hash_algorithm)
    tokens = BlockPrompts(
        front.members,
        config.tokenizer,
        seed=config.hash_seed,
        algorithm=config.hash_algorithm,
        block_tokens=config.block_tokens,
    )
    front.knowledge.tokens = tokens
    front.background.append(tokens.run)
    if config.kv_events and config.tokenizer != TEXT:
        _add_events(front, tokens)
    if config.master:
        pool = StorePool(config.master, _namespace(config.pool_namespace), config.object_tokens)
        front.knowledge.pool = pool
        front.background.append(pool.run)


def _add_events(front: Front, tokens: BlockPrompts) -> None:
    if not subscribe.available():
        log.warning("KV events are not followed: pip install 'moonpool[router]' for pyzmq")
        return
    events = subscribe.Subscriptions(front.members, front.index, front.metrics, tokens.agrees)
    front.events = events
    front.background.append(events.run)


def _namespace(text: str) -> bytes | None:
    try:
        return bytes.fromhex(text) if text else None
    except ValueError:
        raise ConfigError(
            f"pool_namespace: {text!r} is not allowed; allowed: hexadecimal, as engines log it"
        ) from None


def source_of(text: str) -> Source | None:
    """Return who names instances besides the configuration; raise ConfigError."""
    kind, _, rest = text.partition(":")
    if not text:
        return None
    if kind == "file" and rest:
        return FileSource(Path(rest))
    if kind == "kubernetes" and rest:
        service = parse_service(rest)
        return KubernetesSource(HttpSliceApi.in_cluster(service), service.port)
    raise ConfigError(
        f"discovery: {text!r} is not allowed; allowed: file:PATH, "
        "kubernetes:NAMESPACE/SERVICE[:PORT]"
    )


def reload(front: Front, old: RouterConfig, new: RouterConfig) -> list[str]:
    """Let a running front do what another configuration says; return the keys that it cannot
    change without a restart. What is in flight or waits goes on. Raises ConfigError."""
    members = members_of(new)
    if not members and members_of(old):
        # A file that is being written, or was emptied by mistake, must not take a service down.
        raise ConfigError("backends: none are named any more; remove the last ones by hand")
    fixed = [key for key in FIXED if getattr(old, key) != getattr(new, key)]
    changed = new.policy != old.policy
    chosen = policy.create(new.policy, front.index) if changed else None
    if chosen is not None and chosen.needs_prompt and front.knowledge.tokens is None:
        fixed, chosen = [*fixed, "policy"], None
    front.replace_instances(members)
    front.reconfigure(options_of(new), chosen)
    front.resize()
    return fixed


def members_of(config: RouterConfig) -> list[Named]:
    """Return the engines that the configuration names; raise ConfigError."""
    found = [named(url, key="backends") for url in config.backends]
    for key, given in ((PREFILL, config.prefill), (DECODE, config.decode)):
        for text in given:
            url, _, bootstrap = text.strip().partition(" ")
            url = url if "://" in url else f"http://{url}"
            found.append(named(url, key, bootstrap.strip(), key))
    urls = [each.url for each in found]
    for url in urls:
        if urls.count(url) > 1:
            raise ConfigError(f"prefill, decode: {url} is named more than once")
    if config.pd == MOONCAKE and any(e.role == PREFILL and not e.bootstrap for e in found):
        raise ConfigError("prefill: a bootstrap is missing; allowed with mooncake: URL BOOTSTRAP")
    return found
