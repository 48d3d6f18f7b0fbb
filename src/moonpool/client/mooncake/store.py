"""Store over a Mooncake cluster."""

from __future__ import annotations

from typing import Any, Self

from moonpool.client.memory import is_writable, span_of
from moonpool.client.mooncake.admin import Admin
from moonpool.client.mooncake.channel import MooncakeChannel
from moonpool.client.mooncake.moving import MooncakeGetter, MooncakePutter
from moonpool.client.mooncake.wheel import Wheel, store_module
from moonpool.client.store import Store
from moonpool.config import ClientConfig
from moonpool.config_values import parse_address
from moonpool.errors import BufferAlreadyRegisteredError, MasterUnreachableError
from moonpool.transport.base import Transport

ADMIN_PORT = 9003


class MooncakeStore(Store):
    """A cluster of Mooncake's, with the calls of Store.

    What a cluster cannot do raises NotSupportedError: handoffs, changes, drains, pins of what is
    there, sessions. Parents and what ``put_near`` asks for are passed over.
    """

    @classmethod
    def of(cls, config: ClientConfig, master: str) -> Self:
        """Return the cluster of a ``mooncake_master`` at host:port, or ``etcd://...`` as the wheel
        takes it. Raises ConfigError, MasterUnreachableError."""
        wheel = Wheel(config, master, store_module())
        address = config.mooncake_admin or _admin_of(master)
        channel = MooncakeChannel(wheel, Admin(address, config.timeout_s))
        store = cls(
            channel,
            _no_way,
            put_timeout_s=config.put_timeout_s,
            lease_s=config.lease_s,
        )
        store._wheel = wheel
        store._putter = MooncakePutter(wheel, channel)
        store._getter = MooncakeGetter(wheel, config.lease_s)
        return store

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._wheel: Wheel

    @property
    def awaits(self) -> bool:
        """False: a cluster knows of no handoffs."""
        return False

    def open_ways(self) -> int:
        """Return 0: the wheel opens its ways by itself."""
        return 0

    def register_memory(self, address: int, nbytes: int) -> None:
        """See Store; the wheel registers it too."""
        super().register_memory(address, nbytes)
        self._register(address, nbytes)

    def register_buffer(self, buffer: Any) -> None:
        """See Store; the wheel registers it too."""
        span, writable = span_of(buffer), is_writable(buffer)
        self._registry.add(span.address, span.nbytes, writable=writable, owner=span.owner)
        self._register(span.address, span.nbytes)

    def _register(self, address: int, nbytes: int) -> None:
        if self._wheel.register_buffer(address, nbytes):
            self._registry.remove(address)
            raise BufferAlreadyRegisteredError(f"Mooncake does not register {nbytes} bytes")

    def unregister_memory(self, address: int) -> None:
        """See Store."""
        super().unregister_memory(address)
        self._wheel.unregister_buffer(address)

    def unregister_buffer(self, buffer: Any) -> None:
        """See Store."""
        self.unregister_memory(span_of(buffer).address)


def _admin_of(master: str) -> str:
    try:
        host, _ = parse_address(master.split(",")[0], ADMIN_PORT)
    except ValueError:
        return f"127.0.0.1:{ADMIN_PORT}"
    return f"[{host}]:{ADMIN_PORT}" if ":" in host else f"{host}:{ADMIN_PORT}"


def _no_way(*_: Any) -> Transport:
    raise MasterUnreachableError("a Mooncake cluster has no segments that can be mapped")
