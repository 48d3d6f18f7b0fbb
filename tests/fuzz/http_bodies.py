"""What clients, operators and engines send a router, read as the router reads it."""

from __future__ import annotations

import json
import random
from typing import Any

import msgspec

from moonpool.errors import ConfigError
from moonpool.router.admin import _body
from moonpool.router.events import read_batch
from moonpool.router.members import named
from moonpool.router.openai import BadRequest, Fields, priority_of
from moonpool.router.pd_params import WAYS, decode_body, prefill_body, whole_because
from moonpool.router.text import TextPrompts, session_of
from moonpool.vllm import params as wishes
from moonpool.vllm.pd.params import Asked, Dialect, address_of
from tests.fuzz import mutate
from tests.fuzz.target import REFUSED, TAKEN, Target, require

PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses", "/tokenize")
PARAMS: dict[str, Any] = {
    "do_remote_decode": False,
    "do_remote_prefill": True,
    "transfer_id": "t-1",
    "remote_engine_id": "e",
    "remote_request_id": "r",
    "remote_bootstrap_addr": "http://10.0.0.1:8998",
    "remote_host": "10.0.0.1",
    "remote_port": 5600,
    "remote_block_ids": [[1, 2, 3]],
    "tp_size": 1,
    "remote_num_tokens": 48,
}
CHAT: dict[str, Any] = {
    "model": "m",
    "messages": [{"role": "system", "content": "x" * 300}, {"role": "user", "content": "hello"}],
    "stream": True,
    "n": 1,
    "max_tokens": 5,
    "stop": ["a"],
    "user": "u",
    "kv_transfer_params": PARAMS,
    "vllm_xargs": {"a": 1, "kv_transfer_params": PARAMS},
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}],
}
COMPLETION: dict[str, Any] = {"model": "m", "prompt": "y" * 700, "echo": True, "logprobs": 1}
TOKENS: dict[str, Any] = {"model": "m", "prompt": [1, 2, 3, 4], "prompt_cache_key": "k"}
GOOD = (CHAT, COMPLETION, TOKENS)
INSTANCE = {"url": "http://10.0.0.1:8000", "role": "prefill", "bootstrap": 8998}
BATCH: list[Any] = [
    1.5,
    [
        ["BlockStored", [b"h" * 32, 7], None, list(range(32)), 16, None, "GPU"],
        ["BlockRemoved", [b"h" * 32]],
        ["AllBlocksCleared"],
        {"type": "BlockStored", "block_hashes": [1], "token_ids": [1], "block_size": 1},
    ],
    0,
]
JSON_VALUES = [value for value in mutate.VALUES if type(value) is not bytes]


def body_of(chance: random.Random, good: Any) -> bytes:
    """Return the JSON of something like it."""
    tree = mutate.tree(chance, good, JSON_VALUES) if chance.random() < 0.9 else good
    text = json.dumps(tree).encode("utf-8", "surrogatepass")
    if chance.random() < 0.3:
        text = mutate.bytes_of(chance, text)
    return text


class Requests(Target):
    """Bodies of requests: understood, stripped of what is private, cut into two halves."""

    name = "requests' bodies"
    share = 10.0
    episode = 500

    def __init__(self) -> None:
        self._texts = TextPrompts()

    def take(self, chance: random.Random) -> str:
        raw, path = body_of(chance, chance.choice(GOOD)), chance.choice(PATHS)
        try:
            fields = Fields(raw)
            body = fields.without_private(raw)
            fields.text("model")
            fields.is_true("stream")
            session_of(path, fields)
            self._texts.prompt(path, fields)
        except BadRequest:
            return REFUSED
        self._priority(str(chance.choice(JSON_VALUES)))
        self._halves(path, fields, body, chance.choice(WAYS))
        return TAKEN

    def _priority(self, text: str) -> None:
        try:
            require(abs(priority_of({"X-Moonpool-Priority": text}, 100)) <= 100, "a priority")
        except BadRequest:
            return

    def _halves(self, path: str, fields: Fields, body: bytes, way: str) -> None:
        try:
            found = msgspec.json.decode(body)
        except msgspec.DecodeError:
            return  # values are decoded by the engine, which says what is wrong about them
        require("kv_transfer_params" not in found, "what is private goes no further")
        extra = found.get("vllm_xargs")
        hidden = isinstance(extra, dict) and "kv_transfer_params" in extra
        require(not hidden, "nor does it in extra arguments")
        if not whole_because(path, fields, way):
            sent = msgspec.json.decode(prefill_body(path, fields, {"transfer_id": "t"}))
            require(sent["max_tokens"] == 1, "a prefill makes one token")
            sent = msgspec.json.decode(decode_body(body, {"transfer_id": "t"}))
            require(sent["kv_transfer_params"] == {"transfer_id": "t"}, "a decode is told")


class Operators(Target):
    """Bodies to the admin endpoints."""

    name = "admin bodies"
    share = 3.0
    episode = 500

    def take(self, chance: random.Random) -> str:
        try:
            body = _body.decode(body_of(chance, INSTANCE))
            named(body.address(), body.role or body.type, str(body.bootstrap))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ConfigError):
            return REFUSED
        return TAKEN


class TransferParams(Target):
    """``kv_transfer_params`` that a client writes, as each peer connector would get them."""

    name = "kv_transfer_params"
    share = 5.0
    episode = 500

    def take(self, chance: random.Random) -> str:
        params = mutate.tree(chance, PARAMS)
        if chance.random() < 0.2:
            params = chance.choice(mutate.VALUES)
        peer, role = chance.choice(("mooncake", "nixl")), chance.choice(("kv_both", "kv_consumer"))
        wishes.read(params)
        found, why = Dialect(peer, role).clean(params, Asked(48, 3))
        if found is None:
            require(len(why) < 500 and "\n" not in why, "why not is one line")
            return REFUSED
        if found["do_remote_prefill"]:
            address = address_of(found)
            require(address is not None and 0 < address[1] < 65_536, f"an address: {address}")
        msgspec.msgpack.encode(found)
        return TAKEN


class EngineEvents(Target):
    """Batches of an engine's KV events."""

    name = "KV events"
    share = 5.0
    episode = 500

    def take(self, chance: random.Random) -> str:
        if chance.random() < 0.5:
            raw = msgspec.msgpack.encode(mutate.tree(chance, BATCH))
        else:
            raw = mutate.bytes_of(chance, msgspec.msgpack.encode(BATCH))
        try:
            found = read_batch(raw)
        except ValueError:
            return REFUSED
        return TAKEN if found else REFUSED
