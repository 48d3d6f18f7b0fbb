"""Asking an engine what it is: models, adapters, KV cache, event endpoints."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import msgspec

from moonpool.router.instance import EngineFacts

ANSWER_BYTES_MAX = 8 << 20
_CONFIG = re.compile(r"^vllm:cache_config_info\{(.*)\} ", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_STARTED = re.compile(r"^process_start_time_seconds (\S+)$", re.MULTILINE)
MODELS_MAX = 1024


async def fetch(http: aiohttp.ClientSession, url: str, timeout_s: float) -> EngineFacts:
    """Return what the engine says; what it does not say stays at its default."""
    facts = EngineFacts()
    read_models(facts, await _json(http, f"{url}/v1/models", timeout_s))
    read_metrics(facts, (await _get(http, f"{url}/metrics", timeout_s)).decode("utf-8", "replace"))
    version = await _json(http, f"{url}/version", timeout_s)
    if isinstance(version, dict) and isinstance(version.get("version"), str):
        facts.version = version["version"][:64]
    sources = await _json(http, f"{url}/kv_event_sources", timeout_s)
    read_event_sources(facts, sources, urlsplit(url).hostname or "")
    return facts


def read_models(facts: EngineFacts, answer: Any) -> None:
    """Take the models and LoRA adapters of an answer to /v1/models."""
    data = answer.get("data") if isinstance(answer, dict) else None
    cards = [each for each in data if isinstance(each, dict)] if isinstance(data, list) else []
    named = [each for each in cards[:MODELS_MAX] if isinstance(each.get("id"), str)]
    facts.models = tuple(each["id"] for each in named)
    for each in named:
        root = each.get("root")
        if isinstance(root, str) and each.get("parent"):
            facts.loras[each["id"]] = root
        elif isinstance(root, str) and not facts.root:
            facts.root = root


def read_metrics(facts: EngineFacts, text: str) -> None:
    """Take the KV cache's shape, and when the process began, from an answer to /metrics."""
    if (found := _STARTED.search(text)) is not None:
        facts.started = found[1]
    if (found := _CONFIG.search(text)) is None:
        return
    labels = dict(_LABEL.findall(found[1]))
    facts.block_tokens = _whole(labels.get("block_size"))
    facts.blocks = _whole(labels.get("num_gpu_blocks"))
    facts.hash_algorithm = labels.get("prefix_caching_hash_algo", "")


def read_event_sources(facts: EngineFacts, answer: Any, host: str) -> None:
    """Take the endpoints of KV events; a wildcard stands for the engine's own host."""
    if not isinstance(answer, dict):
        return
    found = []
    for source in list(answer.values())[:64]:
        if isinstance(source, dict) and isinstance(source.get("endpoint"), str):
            replay = source.get("replay_endpoint")
            found.append(
                (reachable(source["endpoint"], host), reachable(replay, host) if replay else "")
            )
    facts.events = tuple(pair for pair in found if pair[0].startswith(("tcp://", "ipc://")))


def reachable(endpoint: str, host: str) -> str:
    """Return where to connect to, for an endpoint that may be one to bind to."""
    shown = f"[{host}]" if ":" in host else host
    for wildcard in ("//*:", "//0.0.0.0:", "//[::]:"):
        endpoint = endpoint.replace(wildcard, f"//{shown}:")
    return endpoint


def _whole(text: str | None) -> int:
    return int(text) if text is not None and text.isdigit() and len(text) < 12 else 0


async def _json(http: aiohttp.ClientSession, url: str, timeout_s: float) -> Any:
    try:
        return msgspec.json.decode(await _get(http, url, timeout_s))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


async def _get(http: aiohttp.ClientSession, url: str, timeout_s: float) -> bytes:
    try:
        timeout = aiohttp.ClientTimeout(total=timeout_s)
        async with http.get(url, timeout=timeout, allow_redirects=False) as response:
            body = bytearray()
            async for part in response.content.iter_any():
                body += part
                if len(body) > ANSWER_BYTES_MAX:
                    return b""
            return bytes(body) if response.status == 200 else b""
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
        return b""
