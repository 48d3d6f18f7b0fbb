from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from moonpool.errors import ConfigError
from moonpool.vllm import settings


def test_the_line_of_the_readme_needs_nothing_else() -> None:
    chosen = settings.read({}, "kv_both", {})
    assert chosen.master == "127.0.0.1:50051"
    assert chosen.object_tokens == 256
    assert chosen.saves


@pytest.mark.parametrize("role", settings.ROLES)
def test_every_role_saves(role: str) -> None:
    assert settings.read({}, role, {}).saves


def test_a_consumer_that_keeps_nothing_of_what_it_decodes_saves_nothing() -> None:
    assert not settings.read({"save_decode": False}, "kv_consumer", {}).saves


def test_the_address_comes_from_the_nearest_source(tmp_path: Path) -> None:
    file = tmp_path / "mooncake.json"
    file.write_text(json.dumps({"master_server_address": "c:3"}))
    env = {"MOONCAKE_CONFIG_PATH": str(file)}
    assert settings.read({}, "kv_both", env).master == "c:3"
    env["MOONPOOL_MASTER"] = "b:2"
    assert settings.read({}, "kv_both", env).master == "b:2"
    assert settings.read({"master": "a:1"}, "kv_both", env).master == "a:1"


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ({"object_token": 256}, ["object_token", "did you mean object_tokens?", "lookup_wait_ms"]),
        ({"save_threads": 0}, ["save_threads", "0", "1 to 64"]),
        ({"mover": "fork"}, ["mover", "fork", "one of auto, process, thread"]),
        ({"load_threads": "many"}, ["load_threads", "many", "0 to 64"]),
        ({"pinned_blocks_ratio": 1.5}, ["pinned_blocks_ratio", "1.5", "0.0 to 1.0"]),
        ({"save_decode": "perhaps"}, ["save_decode", "perhaps", "true or false"]),
        ({"load_timeout_s": float("nan")}, ["load_timeout_s", "seconds"]),
        ({"transports": ["rdma"]}, ["transports", "shm, tcp"]),
        ({"master": "host:port"}, ["master", "host:port"]),
        ({"load_async": True}, ["load_async", "allowed:"]),
    ],
)
def test_a_mistake_is_one_line_that_names_the_key(extra: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        settings.read(extra, "kv_both", {})
    message = str(caught.value)
    assert "\n" not in message
    assert all(word in message for word in words)


def test_an_unknown_role_names_the_roles() -> None:
    with pytest.raises(ConfigError, match=r"kv_role.*kv_both, kv_producer, kv_consumer"):
        settings.read({}, "both", {})


def test_every_key_is_described() -> None:
    keys = {key for key, *_ in settings.describe()}
    assert {"master", "object_tokens", "lookup_wait_ms", "pinned_blocks_ratio"} <= keys
    assert "role" not in keys
