"""From the configuration to how a carrier is started."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Protocol

from moonpool.transport.onesided_link import Options
from moonpool.transport.topology import Nic, Topology, read


class Settings(Protocol):
    """The keys of a node's and of a client's configuration that engines read."""

    @property
    def nixl_backends(self) -> tuple[str, ...]: ...
    @property
    def nixl_ucx(self) -> tuple[str, ...]: ...
    @property
    def nixl_devices(self) -> tuple[str, ...]: ...
    @property
    def mooncake_protocol(self) -> str: ...
    @property
    def mooncake_devices(self) -> tuple[str, ...]: ...


def options_for(
    kind: str,
    settings: Settings,
    *,
    gpu: int | None = None,
    host: str = "",
    staging: int = 256 << 20,
    topology: Topology | None = None,
    env: Mapping[str, str] | None = None,
) -> Options:
    """Return the options of an engine; devices that are not named are the nearest ones.

    gpu: the GPU whose memory is moved, None on a node. host: this host's address for peers.
    staging: bytes of a client's staging memory.
    """
    found = read() if topology is None else topology
    nics = found.rdma() if gpu is None else [n for n in found.near_gpu(gpu) if n.rdma]
    if kind == "mooncake":
        devices = settings.mooncake_devices
        if not devices and settings.mooncake_protocol == "rdma":
            devices = tuple(nic.rdma for nic in nics)
        engine = {"protocol": [settings.mooncake_protocol], "devices": list(devices)}
        return Options(kind, engine, {}, staging, host)
    environment = _ucx(settings, nics, bool(found.rdma()), os.environ if env is None else env)
    engine = {"backends": list(settings.nixl_backends)}
    return Options(kind, engine, environment, staging, host)


def _ucx(
    settings: Settings, nics: list[Nic], has_rdma: bool, env: Mapping[str, str]
) -> dict[str, str]:
    """Return UCX's settings; what the configuration or the environment says comes first."""
    ucx: dict[str, str] = {}
    if not has_rdma and "UCX_MODULES" not in env:
        # These modules bring libraries of which a second copy may be loaded; without a device
        # they are of no use, and they have been seen to crash where both are there.
        ucx["UCX_MODULES"] = "^ib"
    if settings.nixl_devices:
        ucx["UCX_NET_DEVICES"] = ",".join(settings.nixl_devices)
    elif nics and "UCX_NET_DEVICES" not in env:
        ucx["UCX_NET_DEVICES"] = ",".join(f"{nic.rdma}:{nic.port}" for nic in nics)
    for setting in settings.nixl_ucx:
        key, _, value = setting.partition("=")
        ucx[key] = value
    return ucx
