from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moonpool.config import (
    MASTER_ADDRESS,
    ROLES,
    ClientConfig,
    MasterConfig,
    NodeConfig,
    RoleConfig,
    describe,
    load,
    resolve_master,
)
from moonpool.config_values import parse_address, parse_size
from moonpool.core.eviction import DEFAULT, POLICIES
from moonpool.demo.up_config import UpConfig
from moonpool.errors import ConfigError


def test_defaults_bind_to_loopback_and_the_documented_ports() -> None:
    master, node = load(MasterConfig, env={}), load(NodeConfig, env={})
    assert (master.host, master.port, master.http_port) == ("127.0.0.1", 50051, 9003)
    assert (node.host, node.port, node.size) == ("127.0.0.1", 50053, 1 << 30)
    assert node.master == MASTER_ADDRESS


def test_sources_in_rising_priority(tmp_path: Path) -> None:
    file = tmp_path / "moonpool.toml"
    file.write_text('size = "1GB"\nport = 1\nname = "file"\n')
    config = load(
        NodeConfig,
        file=file,
        flags={"port": 2, "name": "flag", "host": None},
        env={"MOONPOOL_NODE_NAME": "env", "MOONPOOL_NODE_PORT": "3", "MOONPOOL_MASTER": "m:1"},
    )
    assert (config.size, config.port, config.name) == (1 << 30, 2, "flag")
    assert (config.host, config.master) == ("127.0.0.1", "m:1")


@pytest.mark.parametrize("suffix", [".json", ".toml", ".yaml"])
def test_one_file_for_all_roles(tmp_path: Path, suffix: str) -> None:
    content = {
        ".json": '{"master": {"port": 7}, "node": {"size": "2GB"}}',
        ".toml": '[master]\nport = 7\n[node]\nsize = "2GB"\n',
        ".yaml": "master:\n  port: 7\nnode:\n  size: 2GB\n",
    }[suffix]
    if suffix == ".yaml":
        pytest.importorskip("yaml")
    file = tmp_path / f"all{suffix}"
    file.write_text(content)
    assert load(MasterConfig, file=file, env={}).port == 7
    assert load(NodeConfig, file=file, env={}).size == 2 << 30


@pytest.mark.parametrize(
    ("flags", "parts"),
    [
        ({"port": "abc"}, ["port", "'abc'", "--port", "0 to 65535"]),
        ({"port": 65_536}, ["port", "0 to 65535"]),
        ({"port": True}, ["port", "0 to 65535"]),
        ({"watermark_high": "1.5"}, ["watermark_high", "0.0 to 1.0"]),
        ({"watermark_high": "nan"}, ["watermark_high", "0.0 to 1.0"]),
        ({"put_timeout_s": 0}, ["put_timeout_s", "seconds"]),
        ({"watermark_low": 0.99}, ["watermark_low", "watermark_high", "allowed"]),
        ({"prot": 1}, ["prot", "did you mean port?", "http_port"]),
        ({"zzz": 1}, ["zzz", "allowed: advertise, board_dir"]),
        ({"host": "a\nb"}, ["host", "text"]),
    ],
)
def test_what_is_wrong_is_one_line_that_names_key_and_allowed_values(
    flags: dict[str, object], parts: list[str]
) -> None:
    with pytest.raises(ConfigError) as caught:
        load(MasterConfig, flags=flags, env={})
    message = str(caught.value)
    assert "\n" not in message
    for part in parts:
        assert part in message


@pytest.mark.parametrize(
    "value", ["", "0", "4XB", "-1", "1e9", "4 G B", "2000TB", 0, -5, 1.5, True]
)
def test_bad_sizes_are_refused(value: object) -> None:
    with pytest.raises(ConfigError, match=r"size: .*allowed: bytes"):
        load(NodeConfig, flags={"size": value}, env={})


@pytest.mark.parametrize(
    ("value", "expected"),
    [("4GB", 4 << 30), ("4GiB", 4 << 30), ("1.5 gb", 3 << 29), ("512k", 512 << 10), (7, 7)],
)
def test_sizes(value: int | str, expected: int) -> None:
    assert parse_size(value) == expected


@given(st.integers(1, 1 << 50))
def test_any_number_of_bytes_reads_back(value: int) -> None:
    assert parse_size(value) == value
    assert parse_size(f"{value}") == pytest.approx(value)


@given(st.text())
def test_any_text_is_an_address_or_refused(value: str) -> None:
    try:
        host, port = parse_address(value, 1)
    except ValueError:
        return
    assert host
    assert 0 < port <= 65_535


@pytest.mark.parametrize(
    ("value", "expected"),
    [("h:1", ("h", 1)), ("[::1]:9", ("::1", 9)), ("h", ("h", 50051)), ("[::1]", ("::1", 50051))],
)
def test_addresses(value: str, expected: tuple[str, int]) -> None:
    assert parse_address(value, 50051) == expected


@pytest.mark.parametrize("value", ["", ":1", "h:0", "h:99999", "a:b:1", "http://h:1", "h:1/x"])
def test_bad_addresses_are_refused(value: str) -> None:
    with pytest.raises(ConfigError, match=r"master: .*allowed: host:port"):
        load(NodeConfig, flags={"master": value}, env={})


def test_an_unknown_variable_of_a_role_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"siz.*MOONPOOL_NODE_SIZ.*did you mean size\?"):
        load(NodeConfig, env={"MOONPOOL_NODE_SIZ": "1GB"})


def test_what_kubernetes_injects_for_a_service_is_not_configuration() -> None:
    env = {
        "MOONPOOL_MASTER_SERVICE_HOST": "10.0.0.1",
        "MOONPOOL_MASTER_SERVICE_PORT": "50051",
        "MOONPOOL_MASTER_SERVICE_PORT_RPC": "50051",
        "MOONPOOL_MASTER_PORT": "tcp://10.0.0.1:50051",
        "MOONPOOL_MASTER_PORT_50051_TCP_ADDR": "10.0.0.1",
    }
    assert load(MasterConfig, env=env) == MasterConfig()


@pytest.mark.parametrize(
    ("name", "content", "part"),
    [
        ("a.toml", "x = ", "cannot be understood"),
        ("a.json", "[1]", "no table"),
        ("a.json", "[" * 100_000, "cannot be understood"),
        ("a.ini", "", ".toml, .json"),
        ("a.toml", "[mastr]\nport = 1", "did you mean master?"),
        ("a.toml", "\x00", "cannot be understood"),
    ],
)
def test_bad_files_are_refused(tmp_path: Path, name: str, content: str, part: str) -> None:
    file = tmp_path / name
    file.write_text(content)
    with pytest.raises(ConfigError) as caught:
        load(MasterConfig, file=file, env={})
    assert part in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        load(MasterConfig, file=tmp_path / "none.toml", env={})


def test_the_masters_address_for_engines(tmp_path: Path) -> None:
    file = tmp_path / "mooncake.json"
    file.write_text(json.dumps({"master_server_address": "10.0.0.9:50051", "protocol": "tcp"}))
    mooncake = {"MOONCAKE_CONFIG_PATH": str(file)}
    both = mooncake | {"MOONPOOL_MASTER": "m:2"}
    assert resolve_master(env={}) == MASTER_ADDRESS
    assert resolve_master(env=mooncake) == "10.0.0.9:50051"
    assert resolve_master(env=both) == "m:2"
    assert resolve_master("x:3", env=both) == "x:3"
    assert load(ClientConfig, env=mooncake).master == "10.0.0.9:50051"
    assert load(ClientConfig, env=both).master == "m:2"


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"master_server_address": "http://h:1"}'])
def test_a_bad_mooncake_file_is_refused(tmp_path: Path, content: str) -> None:
    file = tmp_path / "mooncake.json"
    file.write_text(content)
    with pytest.raises(ConfigError, match="MOONCAKE_CONFIG_PATH"):
        resolve_master(env={"MOONCAKE_CONFIG_PATH": str(file)})


@pytest.mark.parametrize("value", ["", "rdma", "shm,shm", ["tcp", "rdma"]])
def test_transports_are_chosen_from_a_list(value: object) -> None:
    with pytest.raises(ConfigError, match="one or more of shm, tcp"):
        load(ClientConfig, flags={"transports": value}, env={})


def test_transports_can_be_forced() -> None:
    config = load(ClientConfig, env={"MOONPOOL_CLIENT_TRANSPORTS": "tcp"})
    assert config.transports == ("tcp",)


@pytest.mark.parametrize("cls", ROLES.values())
def test_every_key_is_described(cls: type[RoleConfig]) -> None:
    for key, _, allowed, about in describe(cls):
        assert key
        assert allowed
        assert about


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("h1", "h1:50051"),
        ("h1:1, h2:2", "h1:1,h2:2"),
        ("[::1]:7,h", "[::1]:7,h:50051"),
        ("etcd://e1,e2:1", "etcd://e1:2379,e2:1"),
        ("etcd://e1:2379/blue", "etcd://e1:2379/blue"),
        ("kubernetes://ns/pool-a", "kubernetes://ns/pool-a"),
    ],
)
def test_where_masters_may_be(given: str, found: str) -> None:
    assert resolve_master(given, {}) == found
    assert load(NodeConfig, flags={"master": given}, env={}).master == found


@pytest.mark.parametrize(
    "ha", ["h1:2379", "etcd://", "etcd://h/a/b", "etcd://h,h", "kubernetes://ns", "zk://h:1", "x"]
)
def test_bad_stores_of_elections_are_refused(ha: str) -> None:
    with pytest.raises(ConfigError, match=r"ha: .* allowed: etcd://host:port"):
        load(MasterConfig, flags={"ha": ha}, env={})


def test_of_ha_and_master_the_stronger_source_counts() -> None:
    env = {"MOONPOOL_HA": "etcd://e:1", "MOONPOOL_MASTER": "m:1"}
    assert load(NodeConfig, env=env).ha == "etcd://e:1"
    assert load(NodeConfig, flags={"master": "m:2"}, env=env).ha == ""
    assert load(NodeConfig, flags={"ha": "etcd://f:1"}, env=env).ha == "etcd://f:1"
    assert load(MasterConfig, env=env).ha == "etcd://e:1"
    assert resolve_master(None, env) == "etcd://e:1"
    assert resolve_master("m:3", env) == "m:3"


def test_the_eviction_policies_are_those_that_there_are() -> None:
    for role in (MasterConfig, UpConfig):
        (field,) = (each for each in dataclasses.fields(role) if each.name == "eviction")
        assert field.default == DEFAULT
        for name in POLICIES:
            assert field.metadata["check"].parse(name) == name
        with pytest.raises(ValueError, match="choices"):
            field.metadata["check"].parse("best")
