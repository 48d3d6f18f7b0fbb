"""Block hashes as vLLM computes them (v1/core/kv_cache_utils.py), outside any engine.

A block's hash covers its parent's hash, its tokens, and what else its KV depends on: LoRA adapter,
images, cache salt. Only full blocks have one.
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from moonpool.errors import ConfigError

DEFAULT_SEED = "vllm-none-hash"
ALGORITHMS = ("sha256", "sha256_cbor")
KEY_MASK = (1 << 64) - 1

Hash = Callable[[Any], bytes]


@dataclass(frozen=True, slots=True)
class Image:
    """An image's (or other medium's) identifier, its first token and how many it takes."""

    identifier: str
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class Extra:
    """What a prompt's KV depends on besides its tokens. lora: (name, path)."""

    lora: tuple[str, str] | None = None
    salt: str | None = None
    images: tuple[Image, ...] = ()


def _sha256(value: Any) -> bytes:
    return hashlib.sha256(pickle.dumps(value, protocol=5)).digest()


def _cbor() -> Hash:
    try:
        import cbor2
    except ImportError:
        raise ConfigError(
            "hash_algorithm: sha256_cbor needs the package cbor2; pip install 'moonpool[router]'"
        ) from None

    def hashed(value: Any) -> bytes:
        return hashlib.sha256(cbor2.dumps(value, canonical=True)).digest()

    return hashed


@lru_cache(maxsize=8)
def hash_function(algorithm: str) -> Hash:
    """Return vLLM's hash function of that name; raise ConfigError for one not in ALGORITHMS."""
    if algorithm not in ALGORITHMS:
        raise ConfigError(
            f"hash_algorithm: {algorithm!r} is not allowed; allowed: {', '.join(ALGORITHMS)}"
        )
    return _sha256 if algorithm == "sha256" else _cbor()


def key_of(block_hash: bytes) -> int:
    """Return the 64 bits by which vLLM names a block in its KV events."""
    return int.from_bytes(block_hash[-8:], "big")


class BlockHasher:
    """Hashes prompts block by block.

    tagged: whether extra keys say what they are, as vLLM does since 0.31. seed: PYTHONHASHSEED of
    the engines where it is set.
    """

    def __init__(
        self,
        block_tokens: int,
        algorithm: str = "sha256",
        seed: str = DEFAULT_SEED,
        *,
        tagged: bool = True,
    ) -> None:
        self.block_tokens = block_tokens
        self.algorithm = algorithm
        self._hash = hash_function(algorithm)
        self._tagged = tagged
        self.root = self._hash(seed)

    def extend(
        self, hashes: list[bytes], tokens: Sequence[int], extra: Extra | None = None
    ) -> list[bytes]:
        """Append the hashes of the full blocks that ``hashes`` does not cover yet; return it.

        tokens: the whole prompt's ids.
        """
        return self.append(hashes, tokens[len(hashes) * self.block_tokens :], extra)

    def append(
        self, hashes: list[bytes], fresh: Sequence[int], extra: Extra | None = None
    ) -> list[bytes]:
        """Append the hashes of the full blocks in ``fresh``, which follows on ``hashes``."""
        size, digest = self.block_tokens, self._hash
        parent = hashes[-1] if hashes else self.root
        known = len(hashes) * size
        keys = None
        for first in range(0, len(fresh) - size + 1, size):
            if extra is not None:
                keys = self.extra_keys(known + first, extra)
            parent = digest((parent, tuple(fresh[first : first + size]), keys))
            hashes.append(parent)
        return hashes

    def extra_keys(self, first: int, extra: Extra) -> tuple[Any, ...] | None:
        """Return the extra keys of the block that begins at token ``first``."""
        last = first + self.block_tokens
        keys: list[Any] = []
        if extra.lora:
            name, path = extra.lora
            keys.append(("lora", name, path) if self._tagged else name)
        for image in extra.images:
            if image.offset < last and first < image.offset + image.length:
                at = (image.identifier, image.offset - first)
                keys.append(("mm", *at) if self._tagged else at)
        if extra.salt and first == 0:
            keys.append(("cache_salt", extra.salt) if self._tagged else extra.salt)
        return tuple(keys) or None
