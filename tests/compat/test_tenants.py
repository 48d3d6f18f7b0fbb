"""Registered tenants and their quotas, on Mooncake's master and on moonpool's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from moonpool.compat.store import MooncakeDistributedStore
from tests.compat.beds import (
    REAL,
    SEGMENT,
    WHY_NOT_REAL,
    Bed,
    cases,
    mooncake_bed,
    moonpool_bed,
)
from tests.compat.quotas import Quotas
from tests.integration.processes import eventually

LEASE_MS = 5000
MIB = 1 << 20


@pytest.fixture(scope="module", params=["moonpool", "mooncake"])
def strict(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Bed]:
    """A pool where only registered tenants may put."""
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "mooncake" and not REAL:
        pytest.skip(WHY_NOT_REAL)
    making = moonpool_strict if request.param == "moonpool" else mooncake_strict
    with making(folder) as bed:
        yield bed


def moonpool_strict(folder: Path) -> AbstractContextManager[Bed]:
    return moonpool_bed(folder, LEASE_MS, tenant_quotas=str(folder / "quotas.yaml"))


def mooncake_strict(folder: Path) -> AbstractContextManager[Bed]:
    file = folder / "quotas.yaml"
    file.write_text("version: 1\ntenants: []\n")
    flags = "--enable_multi_tenants", f"--tenant_quota_connector_uri={file}"
    return mooncake_bed(folder, LEASE_MS, *flags)


@pytest.mark.parametrize("case", cases("tenants"))
def test_tenants(strict: Bed, case: str) -> None:
    strict.run(case, admin=strict.admin)


def test_quotas_last(tmp_path: Path) -> None:
    """A master that is killed and comes back knows its tenants and what they have."""
    with moonpool_strict(tmp_path) as bed:
        owner = bed.start("owner", SEGMENT, "")
        quotas, tenant = Quotas(bed.admin), MooncakeDistributedStore()
        assert quotas.put("a", 4 * MIB)[0] == 200
        where = "127.0.0.1", "P2PHANDSHAKE", 0, 16 * MIB, "tcp", "", bed.master
        assert tenant.setup(*where, tenant_id="a") == 0
        assert tenant.put_batch(["1", "2", "3"], [bytes(MIB)] * 3) == 0
        master = bed.daemon
        assert master is not None
        ports = {name: master.ready[name] for name in ("port", "http_port")}
        master.process.kill()
        master.process.wait()
        master.keys |= ports
        master.start()

        def is_known() -> bool:
            code, said = quotas.of("a")
            return code == 200 and bool(said["charged_bytes"] == 3 * MIB)

        eventually("its objects are charged again", is_known, 60.0)
        tenant.close()
        owner.close()
