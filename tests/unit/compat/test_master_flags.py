"""What the flags of mooncake_master become."""

from __future__ import annotations

from pathlib import Path

import pytest

from moonpool.compat.commands.master import help_text, main, read
from moonpool.compat.commands.master_flags import config_of
from moonpool.config import MasterConfig
from moonpool.errors import ConfigError


def config(*arguments: str) -> MasterConfig:
    return config_of(read(arguments)[0])


def test_defaults_are_mooncakes() -> None:
    found = config()
    assert (found.host, found.port, found.http_port) == ("0.0.0.0", 50051, 9003)
    assert (found.watermark_high, found.kv_lease_s) == (0.90, 10.0)
    assert found.watermark_low == pytest.approx(0.85)
    assert (found.soft_pin_s, found.soft_pin_s_max, found.client_ttl_s) == (1800.0, 86_400.0, 10.0)


def test_flags_become_settings() -> None:
    found = config(
        "--port=50063",
        "--metrics_port=9100",
        "--default_kv_lease_ttl=5000",
        "--default_kv_soft_pin_ttl=10m",
        "--noallow_evict_soft_pinned_objects",
        "--eviction_ratio=0.2",
        "--eviction_high_watermark_ratio=0.8",
        "--client_ttl=4",
        "--put_start_discard_timeout_sec=7",
    )
    assert (found.port, found.http_port) == (50063, 9100)
    assert (found.kv_lease_s, found.soft_pin_s, found.evict_soft_pinned) == (5.0, 600.0, False)
    assert (found.watermark_high, found.put_timeout_s, found.client_ttl_s) == (0.8, 7.0, 4.0)
    assert found.watermark_low == pytest.approx(0.6)


def test_tenants_have_quotas_in_a_file() -> None:
    uri = "--tenant_quota_connector_uri=file:///etc/quotas.yaml"
    assert config(uri).tenant_quotas == ""
    assert config("--enable_multi_tenants", uri).tenant_quotas == "/etc/quotas.yaml"
    assert config("--enable_multi_tenants").tenant_quotas == "memory"
    with pytest.raises(ConfigError):
        config("--enable_multi_tenants", "--tenant_quota_connector_type=etcd")


def test_rpc_port_wins_over_the_older_name() -> None:
    assert config("--port=1", "--rpc_port=2").port == 2


@pytest.mark.parametrize("name", ["master.yaml", "master.json"])
def test_a_file_gives_values_and_flags_win(tmp_path: Path, name: str) -> None:
    pytest.importorskip("yaml")
    file = tmp_path / name
    file.write_text(
        '{"rpc_port": 60001, "client_live_ttl_sec": 3, "surprise": 1, "eviction_ratio": 0.1}'
    )
    values, warnings = read([f"--config_path={file}", "--rpc_port", "60002"])
    found = config_of(values)
    assert (found.port, found.client_ttl_s) == (60002, 3.0)
    assert len(warnings) == 1
    assert "surprise" in warnings[0]


def test_what_has_no_effect_is_said_unless_its_purpose_is_met_otherwise() -> None:
    _, warnings = read(["--rpc_thread_num=64", "--cxl_size=5", "--memory_allocator=offset"])
    assert warnings == ["--cxl_size has no effect on a moonpool master"]


def test_elections() -> None:
    etcd = ("--enable_ha", "--etcd_endpoints=http://a:2379;b:2379")
    assert config(*etcd).ha == "etcd://a:2379,b:2379"
    assert config(*etcd, "--cluster_id=blue").ha == "etcd://a:2379,b:2379/blue"
    k8s = config("--enable_ha", "--ha_backend_type=k8s", "--ha_backend_connstring=ns/lease")
    assert k8s.ha == "kubernetes://ns/lease"
    for wrong in (["--ha_backend_type=redis", "--ha_backend_connstring=r:1"], []):
        with pytest.raises(ConfigError, match="ha_backend_type"):
            config("--enable_ha", *wrong)


@pytest.mark.parametrize(
    "wrong",
    ["--eviction_ratio=1.5", "--port=70000", "--client_ttl=0", "--rpc_interface=nonesuch0"],
)
def test_what_cannot_be_is_one_line(wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([wrong]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"mooncake_master: {wrong.split('=')[0]}")
    assert said.count("\n") == 1


def test_help_names_the_flags() -> None:
    assert "--default_kv_lease_ttl" in help_text()
