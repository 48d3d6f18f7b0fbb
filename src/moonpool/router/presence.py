"""One line in the log when an instance goes, and one when it is back."""

from __future__ import annotations

import logging

from moonpool.router.instance import Instance

log = logging.getLogger("moonpool.router.instances")


def gone(instance: Instance, why: str) -> None:
    """Note that an instance is not used for now."""
    if not instance.down:
        log.warning("%s (%s) is gone: %s", instance.url, instance.role, why)
    instance.down = why


def back(instance: Instance) -> None:
    """Note that an instance has answered."""
    if instance.down:
        log.info("%s (%s) is back", instance.url, instance.role)
        instance.down = ""
