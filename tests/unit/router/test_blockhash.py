"""Block hashes, beside vLLM's own functions and a value seen in a running engine."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from moonpool.errors import ConfigError
from moonpool.router.blockhash import BlockHasher, Extra, Image, key_of

TOKENS = [(place * 7) % 200 + 3 for place in range(128)]
SEEN = "0db0828314ff9bb9ee27d0d4170d37d870c6cf026ce2a408f9f9cb4e7e05d524"
EXTRAS = [
    None,
    Extra(),
    Extra(salt="pepper"),
    Extra(lora=("adapter", "/models/adapter")),
    Extra(images=(Image("picture", 20, 30), Image("other", 50, 4))),
    Extra(("adapter", "/a"), "pepper", (Image("picture", 3, 90),)),
]


def test_the_value_seen_in_a_running_engine() -> None:
    (digest,) = BlockHasher(128).extend([], TOKENS)
    assert digest.hex() == SEEN
    assert key_of(digest) == int(SEEN[-16:], 16)


def test_only_full_blocks_have_hashes_and_old_ones_are_kept() -> None:
    hasher = BlockHasher(16)
    whole = hasher.extend([], TOKENS)
    part = hasher.extend([], TOKENS[:70])
    assert len(part) == 4
    assert hasher.extend(part, TOKENS) == whole


def test_an_unknown_algorithm_is_named() -> None:
    with pytest.raises(ConfigError, match="hash_algorithm: 'md5'"):
        BlockHasher(16, "md5")


def test_old_engines_do_not_tag_their_extra_keys() -> None:
    hasher = BlockHasher(16, tagged=False)
    extra = Extra(("adapter", "/a"), "pepper", (Image("picture", 8, 4),))
    assert hasher.extra_keys(0, extra) == ("adapter", ("picture", 8), "pepper")


def _request(extra: Extra) -> Any:
    return SimpleNamespace(
        mm_features=[
            SimpleNamespace(
                identifier=image.identifier,
                mm_position=SimpleNamespace(offset=image.offset, length=image.length),
            )
            for image in extra.images
        ],
        lora_request=SimpleNamespace(lora_name=extra.lora[0], lora_path=extra.lora[1])
        if extra.lora
        else None,
        cache_salt=extra.salt,
        prompt_embeds=None,
    )


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("algorithm", ["sha256", "sha256_cbor"])
@pytest.mark.parametrize("extra", EXTRAS)
def test_hashes_equal_vllm_s(
    algorithm: str, extra: Extra | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    utils = pytest.importorskip("vllm.v1.core.kv_cache_utils")
    hashing = pytest.importorskip("vllm.utils.hashing")
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    digest = getattr(hashing, algorithm)
    utils.init_none_hash(digest)
    request, parent, mm, expected = _request(extra or Extra()), None, 0, []
    for first in range(0, len(TOKENS), 16):
        keys, mm = utils.generate_block_hash_extra_keys(request, first, first + 16, mm)
        parent = utils.hash_block_tokens(digest, parent, TOKENS[first : first + 16], keys)
        expected.append(bytes(parent))
    assert BlockHasher(16, algorithm).extend([], TOKENS, extra) == expected


@pytest.mark.filterwarnings("ignore")
def test_a_seed_of_the_engines_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    utils = pytest.importorskip("vllm.v1.core.kv_cache_utils")
    hashing = pytest.importorskip("vllm.utils.hashing")
    monkeypatch.setenv("PYTHONHASHSEED", "7")
    utils.init_none_hash(hashing.sha256)
    assert BlockHasher(16, seed="7").root == bytes(utils.NONE_HASH)
