"""What clients may put into kv_transfer_params, before vLLM's own connectors see it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moonpool.vllm.pd.hosts import Hosts
from moonpool.vllm.pd.params import Asked, Dialect

ASKED = Asked(100, 4)
NIXL_RECEIVES = {
    "do_remote_prefill": True,
    "do_remote_decode": False,
    "remote_block_ids": [[1, 2, 3, 4]],
    "remote_engine_id": "e",
    "remote_request_id": "cmpl-1-abcd",
    "remote_host": "10.0.0.1",
    "remote_port": 5600,
    "tp_size": 1,
    "dcp_size": 1,
    "pp_size": 1,
    "remote_num_tokens": 100,
    "remote_blocks_expiry_time": None,
    "transfer_mode": "pull",
    "remote_prefill_cached_tokens": 0,
}
MOONCAKE_RECEIVES = {
    "do_remote_prefill": True,
    "do_remote_decode": False,
    "transfer_id": "xfer-1",
    "remote_engine_id": "e",
    "remote_bootstrap_addr": "http://10.0.0.1:8998",
}
MOONCAKE_SENDS = {"do_remote_decode": True, "do_remote_prefill": False, "transfer_id": "xfer-1"}


def clean(peer: str, params: Any, role: str = "kv_both") -> tuple[Any, str]:
    return Dialect(peer, role).clean(params, ASKED)


@pytest.mark.parametrize(
    ("peer", "params"),
    [
        ("nixl", {"do_remote_decode": True, "do_remote_prefill": False}),
        ("mooncake", MOONCAKE_SENDS),
        ("mooncake", MOONCAKE_RECEIVES),
    ],
)
def test_what_routers_send_passes_unchanged(peer: str, params: dict[str, Any]) -> None:
    assert clean(peer, params) == (params, "")


def test_what_a_nixl_prefill_answers_passes() -> None:
    found, why = clean("nixl", NIXL_RECEIVES)
    assert why == ""
    gone = {"remote_blocks_expiry_time", "transfer_mode", "remote_prefill_cached_tokens"}
    assert found == {key: value for key, value in NIXL_RECEIVES.items() if key not in gone}


def test_vllms_own_request_to_let_go_passes() -> None:
    """Sent for a request that was refused before it had a prompt; names all of P's blocks."""
    found, why = Dialect("nixl", "kv_both").clean(NIXL_RECEIVES, Asked(1, 1))
    assert (len(found or {}), why) == (11, "")


@pytest.mark.parametrize("params", [None, {}, {"do_remote_prefill": False}, {"other": 1}])
@pytest.mark.parametrize("peer", ["nixl", "mooncake"])
def test_requests_that_ask_for_nothing_are_plain_requests(peer: str, params: Any) -> None:
    assert clean(peer, params) == (None, "")


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"do_remote_decode": True}, "at once"),
        ({"do_remote_prefill": 1}, "neither true nor false"),
        ({"remote_block_ids": []}, "one list"),
        ({"remote_block_ids": [[1, 2, 3]]}, "the prompt's 4 blocks"),
        ({"remote_block_ids": [[1, 2, 3, 4, 5]]}, "the prompt's 4 blocks"),
        ({"remote_num_tokens": 99}, "remote_num_tokens"),
        ({"remote_block_ids": [[1, 2, 3, -4]]}, "something else than block numbers"),
        ({"remote_block_ids": [[1, 2, 3, 1 << 31]]}, "something else than block numbers"),
        ({"remote_block_ids": [[1, 2, 3, True]]}, "something else than block numbers"),
        ({"remote_block_ids": [[1, 2, 3, 4], [5]]}, "one list"),
        ({"remote_engine_id": ["e"]}, "remote_engine_id"),
        ({"remote_request_id": "\ud800"}, "cannot be printed"),
        ({"remote_request_id": None}, "remote_request_id"),
        ({"remote_host": "a b"}, "no host"),
        ({"remote_port": 0}, "remote_port"),
        ({"remote_port": "5600"}, "remote_port"),
        ({"tp_size": 8}, "tp_size"),
        ({"pp_size": 1 << 40}, "pp_size"),
        ({"dcp_size": True}, "dcp_size"),
        ({"remote_num_tokens": -1}, "remote_num_tokens"),
        ({"transfer_mode": "push"}, "transfer_mode"),
    ],
)
def test_what_would_hurt_the_nixl_connector_is_refused(changes: dict[str, Any], word: str) -> None:
    found, why = clean("nixl", NIXL_RECEIVES | changes)
    assert found is None
    assert word in why


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"transfer_id": ""}, "transfer_id"),
        ({"transfer_id": 7}, "transfer_id"),
        ({"remote_engine_id": {}}, "remote_engine_id"),
        ({"remote_bootstrap_addr": "file:///etc/passwd"}, "no address"),
        ({"remote_bootstrap_addr": "http://user@host:1"}, "no address"),
        ({"remote_bootstrap_addr": "http://host:99999"}, "no address"),
        ({"remote_bootstrap_addr": "http://host/admin?x=1"}, "no address"),
        ({"remote_bootstrap_addr": "http://[::1"}, "no address"),
    ],
)
def test_what_would_hurt_the_mooncake_connector_is_refused(
    changes: dict[str, Any], word: str
) -> None:
    found, why = clean("mooncake", MOONCAKE_RECEIVES | changes)
    assert found is None
    assert word in why


def test_an_instance_is_not_asked_for_the_other_role() -> None:
    """vLLM's MooncakeConnector ends the engine for such a request."""
    assert clean("mooncake", MOONCAKE_RECEIVES, "kv_producer")[0] is None
    assert clean("mooncake", MOONCAKE_SENDS, "kv_consumer")[0] is None
    assert clean("mooncake", MOONCAKE_RECEIVES, "kv_consumer")[0] == MOONCAKE_RECEIVES
    assert clean("mooncake", MOONCAKE_SENDS, "kv_producer")[0] == MOONCAKE_SENDS


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("10.1.2.3", True),
        ("10.2.2.3", False),
        ("P0.example", True),
        ("p1.example", False),
        ("fd00::7", True),
        ("169.254.169.254", False),
    ],
)
def test_only_known_hosts_may_be_named(host: str, allowed: bool) -> None:
    hosts = Hosts(("10.1.0.0/16", "p0.example", "fd00::/8"))
    found, why = Dialect("nixl", "kv_both", hosts).clean(
        NIXL_RECEIVES | {"remote_host": host}, ASKED
    )
    assert (found is not None, why == "") == (allowed, allowed)
    named = f"[{host}]" if ":" in host else host
    address = {"remote_bootstrap_addr": f"http://{named}:8998"}
    found, _ = Dialect("mooncake", "kv_both", hosts).clean(MOONCAKE_RECEIVES | address, ASKED)
    assert (found is not None) == allowed


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=8,
)
keys = st.sampled_from(sorted({**NIXL_RECEIVES, **MOONCAKE_RECEIVES}))


def hostile() -> st.SearchStrategy[Any]:
    """Valid parameters with some values replaced, or anything at all."""
    changed = st.builds(
        lambda base, changes: base | changes,
        st.sampled_from([NIXL_RECEIVES, MOONCAKE_RECEIVES, MOONCAKE_SENDS]),
        st.dictionaries(keys, anything, max_size=3),
    )
    return changed | anything | st.dictionaries(keys, anything)


@given(
    hostile(), st.sampled_from(["nixl", "mooncake"]), st.sampled_from(["kv_both", "kv_consumer"])
)
def test_whatever_passes_is_of_known_keys_and_plain(params: Any, peer: str, role: str) -> None:
    found, _ = clean(peer, params, role)
    if found is not None:
        assert json.loads(json.dumps(found)) == found
        assert found["do_remote_decode"] != found["do_remote_prefill"]
        assert set(found) <= set(NIXL_RECEIVES) | set(MOONCAKE_RECEIVES)
        str(found).encode()
