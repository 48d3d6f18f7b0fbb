"""What engines say of themselves, true or not."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moonpool.router import facts
from moonpool.router.instance import EngineFacts

METRICS = """# HELP vllm:cache_config_info Information
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="2048",prefix_caching_hash_algo="sha256"} 1.0
process_start_time_seconds 1.7e+09
"""  # noqa: E501


def test_the_cache_s_shape_is_read() -> None:
    found = EngineFacts()
    facts.read_metrics(found, METRICS)
    assert (found.block_tokens, found.blocks, found.hash_algorithm) == (16, 2048, "sha256")
    assert found.started == "1.7e+09"


def test_models_and_adapters_are_read() -> None:
    found = EngineFacts()
    cards = [{"id": "base", "root": "/m", "parent": None}, {"id": "l", "root": "/l", "parent": "b"}]
    facts.read_models(found, {"data": cards})
    assert found.models == ("base", "l")
    assert found.loras == {"l": "/l"}


@pytest.mark.parametrize(
    ("endpoint", "expected"),
    [
        ("tcp://*:5557", "tcp://engine:5557"),
        ("tcp://0.0.0.0:5557", "tcp://engine:5557"),
        ("tcp://10.0.0.7:5557", "tcp://10.0.0.7:5557"),
        ("inproc://cache", None),
    ],
)
def test_wildcards_stand_for_the_engine_s_host(endpoint: str, expected: str | None) -> None:
    found = EngineFacts()
    source = {"endpoint": endpoint, "replay_endpoint": None}
    facts.read_event_sources(found, {"0": source}, "engine")
    assert found.events == (((expected, ""),) if expected else ())


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["data", "id", "root", "parent", "endpoint"]), inner)
    ),
)


@given(_JSON, st.text())
def test_nonsense_is_survived(answer: object, text: str) -> None:
    found = EngineFacts()
    facts.read_models(found, answer)
    facts.read_event_sources(found, answer, "h")
    facts.read_metrics(found, text)
    msgspec.json.encode(found.models)
