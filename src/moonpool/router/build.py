"""The router made of its configuration."""

from __future__ import annotations

import os

from moonpool.config import RouterConfig
from moonpool.errors import ConfigError
from moonpool.router import policy
from moonpool.router.admission import Limits
from moonpool.router.front import Front
from moonpool.router.index import PrefixIndex
from moonpool.router.options import Options

ADMIN_VARIABLE = "ADMIN_API_KEY"


def options_of(config: RouterConfig) -> Options:
    """Return the front's options."""
    return Options(
        idle_timeout_s=config.timeout_s,
        body_timeout_s=config.body_timeout_s,
        body_bytes=config.body_size,
        admin_key=config.admin_api_key or os.environ.get(ADMIN_VARIABLE, ""),
        session_header=config.session_header,
        health_s=config.health_s,
        limits=Limits(
            in_flight=config.in_flight,
            per_instance=config.instance_in_flight,
            queue=config.queue,
            queue_s=config.queue_timeout_s,
            rate_per_minute=config.rate_limit,
            rate_burst=config.rate_burst,
        ),
    )


def front_of(config: RouterConfig) -> Front:
    """Return a front that does what the configuration says; raise ConfigError."""
    refuse_split(config)
    index = PrefixIndex()
    return Front(
        config.backends,
        policy.create(config.policy, index),
        options=options_of(config),
        index=index,
    )


def refuse_split(config: RouterConfig) -> None:
    """Raise ConfigError for engines that only prefill or decode."""
    for key, given in (("prefill", config.prefill), ("decode", config.decode)):
        if given:
            raise ConfigError(
                f"{key}: prefill and decode on different engines come with the connector's "
                "support for it; until then every engine does both: --instance URL"
            )
