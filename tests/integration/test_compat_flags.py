"""What mooncake_master's flags do to a pool, with real processes and a real network."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from moonpool import Store
from moonpool.client.wishes import Wishes
from moonpool.compat.store import MooncakeDistributedStore
from moonpool.core.keys import key_of
from moonpool.core.messages import PutItem
from tests.integration.mooncake_shim import MooncakeMaster, answers, running
from tests.integration.networks import Hosts, needs_namespaces
from tests.integration.processes import Master, Node, eventually

MIB = 1 << 20


def store_on(master: str, segment: int = 0) -> MooncakeDistributedStore:
    store = MooncakeDistributedStore()
    assert store.setup("127.0.0.1", "P2PHANDSHAKE", segment, MIB, "tcp", "", master) == 0
    return store


def test_a_put_that_is_not_ended_gives_its_key_back(tmp_path: Path) -> None:
    with MooncakeMaster(tmp_path, "--put_start_discard_timeout_sec=2") as master:
        store = store_on(master.address, 32 * MIB)
        try:
            with Store.connect(master.address) as slow:
                items = [PutItem(key_of("a"), 1000)]
                grants, epoch = slow._putter.begin(items, Wishes())
                assert (grants[0].code, epoch > 0) == (0, True)
                started = time.monotonic()
                # As with Mooncake, a key that is being put is no error, and not there.
                assert store.put("a", b"other") == 0
                assert store.is_exist("a") == 0
                eventually("the key is free", lambda: bool(store.put("a", b"x") or _there(store)))
                assert time.monotonic() - started >= 1.9
                assert store.get("a") == b"x"
                assert "master_put_start_discard_cnt 1\n" in master.page("/metrics")
                assert "master_put_start_discarded_staging_size 0" not in master.page("/metrics")
            eventually(
                "its space comes back with its writer's end",
                lambda: "master_put_start_discarded_staging_size 0\n" in master.page("/metrics"),
            )
        finally:
            store.close()


def _there(store: MooncakeDistributedStore) -> bool:
    return bool(store.is_exist("a") == 1)


def test_registered_tenants_only(tmp_path: Path) -> None:
    file = tmp_path / "quotas.yaml"
    file.write_text("version: 1\ntenants:\n  - name: default\n    quota: 1048576\n")
    flags = "--enable_multi_tenants", f"--tenant_quota_connector_uri={file}"
    with MooncakeMaster(tmp_path, *flags) as master:
        store, guest = store_on(master.address, 32 * MIB), MooncakeDistributedStore()
        where = "127.0.0.1", "P2PHANDSHAKE", 0, MIB, "tcp", "", master.address
        assert guest.setup(*where, tenant_id="guest") == 0
        try:
            assert [store.put(f"k{i}", bytes(MIB // 2)) for i in range(4)] == [0] * 4
            assert guest.put("k", b"x") == -1701
            assert 'charged_bytes{tenant_id="default"} 1048576\n' in master.page("/metrics")
        finally:
            guest.close()
            store.close()


def test_asking_leases_under_the_mooncake_api_and_not_otherwise(tmp_path: Path) -> None:
    flags = "--default_kv_lease_ttl=30s", "--eviction_high_watermark_ratio=0.9"
    with MooncakeMaster(tmp_path, *flags) as master:
        store = store_on(master.address, 32 * MIB)
        try:
            names = [f"k{i}" for i in range(20)]
            with Store.connect(master.address, put_timeout_s=0.1) as plain:
                for name in names:
                    assert store.put(name, b"x" * MIB) == 0
                assert all(plain.exists_batch(names))
                assert plain.match_prefix(names) == 20
                assert plain.stat("k0").leases == 0
                assert store.remove("k0") == 0
                assert store.batch_is_exist(names[1:]) == [1] * 19
                assert plain.stat("k1").leases == 1
                assert store.remove("k1") == -706
                # What is leased stays, however full the pool is.
                assert [store.put(f"more{i}", b"x" * MIB) for i in range(20)] == [0] * 20
                assert all(plain.exists_batch(names[1:]))
                assert not all(plain.exists_batch([f"more{i}" for i in range(20)]))
        finally:
            store.close()


@pytest.fixture
def far() -> Hosts:
    return Hosts(1)


@needs_namespaces
def test_a_host_that_falls_silent_is_gone_after_client_ttl(tmp_path: Path, far: Hosts) -> None:
    with far as hosts:
        master = MooncakeMaster(tmp_path)
        flags = f"--rpc_address={hosts.here}", f"--port={master.port}", "--client_ttl=2"
        page = f"http://127.0.0.1:{master.http_port}"
        command = "mooncake_master", f"--metrics_port={master.http_port}", *flags
        stands_for_it = Master(tmp_path, host=hosts.here)
        stands_for_it.ready = {"port": master.port}
        node = Node(tmp_path, stands_for_it, "silent", size="32MB", host=hosts.address(0))
        node.prefix = hosts.command(0)
        with running(tmp_path, lambda: answers(f"{page}/health"), *command), node:
            assert "silent" in master.page("/get_all_segments")
            hosts.cut(0)
            started = time.monotonic()
            eventually("it is gone", lambda: "silent" not in master.page("/get_all_segments"), 60)
            assert time.monotonic() - started >= 0.9
            hosts.heal(0)
            eventually("it is back", lambda: "silent" in master.page("/get_all_segments"), 60)
