"""The wheel's client: found, set up, and guarded against calls that would crash it."""

from __future__ import annotations

import contextlib
import importlib
import os
import socket
import threading
from collections.abc import Iterator
from typing import Any, Final

from moonpool.config import ClientConfig
from moonpool.config_ha import MASTER_PORT, is_store
from moonpool.config_values import is_loopback, parse_address
from moonpool.errors import ConfigError, MasterUnreachableError

INSTALL: Final = "pip install 'moonpool[mooncake]'"
CLOSE_S: Final = 60.0


def store_module() -> Any:
    """Return the wheel's ``mooncake.store``. Raises ConfigError."""
    try:
        module = importlib.import_module("mooncake.store")
    except (ImportError, OSError) as error:
        raise ConfigError(f"engine: mooncake needs its wheel ({INSTALL}): {error}") from None
    if module.MooncakeDistributedStore.__module__.startswith("moonpool"):
        raise ConfigError(
            "engine: mooncake needs Mooncake's own wheel, but PYTHONPATH names moonpool's package "
            "of that name (moonpool compat env): leave it out for this process"
        )
    return module


class Wheel:
    """One client of the cluster. Its calls are those of MooncakeDistributedStore.

    The wheel crashes the process when it is called before ``setup`` or after ``close``: calls count
    themselves, and ``close`` waits for them.
    """

    def __init__(self, config: ClientConfig, master: str, module: Any) -> None:
        """Connect. Raises MasterUnreachableError."""
        _look_for(master, config.timeout_s)
        os.environ.setdefault("MC_RPC_TIMEOUT_MS", str(max(1, int(config.timeout_s * 1000))))
        self.config_class: Any = module.ReplicateConfig
        self.soft_pin: Any = module.SoftPinAction.ENABLE
        self.buffer_bytes = config.mooncake_buffer
        self._store: Any = module.MooncakeDistributedStore()
        self._free = threading.Condition()
        self._calls = 0
        self._closed = False
        tenant = {"tenant_id": config.mooncake_tenant} if config.mooncake_tenant else {}
        code = self._store.setup(
            config.mooncake_hostname or _own_host(master),
            config.mooncake_metadata,
            0,
            self.buffer_bytes,
            config.mooncake_protocol,
            ",".join(config.mooncake_devices),
            master,
            **tenant,
        )
        if code:
            self._closed = True
            raise MasterUnreachableError(f"mooncake_master at {master}: setup ended with {code}")

    def __getattr__(self, name: str) -> Any:
        """Return a call of the store's, guarded."""
        if name.startswith("_"):
            raise AttributeError(name)

        def guarded(*args: Any) -> Any:
            with self._using() as store:
                return getattr(store, name)(*args)

        return guarded

    @contextlib.contextmanager
    def _using(self) -> Iterator[Any]:
        with self._free:
            if self._closed:
                raise MasterUnreachableError("the store is closed")
            self._calls += 1
        try:
            yield self._store
        finally:
            with self._free:
                self._calls -= 1
                self._free.notify_all()

    def close(self) -> None:
        """Close when no call is in progress; calls fail from now on. May be called twice."""
        with self._free:
            if self._closed:
                return
            self._closed = True
            if not self._free.wait_for(lambda: not self._calls, CLOSE_S):
                return  # a call that hangs: the process's end closes it
        self._store.close()


def _look_for(master: str, timeout_s: float) -> None:
    """Raise MasterUnreachableError if nobody listens there: the wheel would try for a minute."""
    if is_store(master) or "," in master:
        return
    host, port = parse_address(master, MASTER_PORT)
    try:
        socket.create_connection((host, port), timeout_s).close()
    except OSError as error:
        why = error.strerror or error
        raise MasterUnreachableError(f"mooncake_master at {master}: {why}") from None


def _own_host(master: str) -> str:
    """Return the address under which the cluster reaches this process."""
    if is_store(master):
        return socket.gethostname()
    host, _ = parse_address(master.split(",")[0], MASTER_PORT)
    if is_loopback(host):
        return "127.0.0.1"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, 9))  # sends nothing: only asks which way is taken
            return str(probe.getsockname()[0])
        except OSError as error:
            raise MasterUnreachableError(f"{host}: {error.strerror or error}") from None
