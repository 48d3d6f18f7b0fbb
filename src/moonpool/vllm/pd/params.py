"""What may stand in a request's ``kv_transfer_params``; anything else is left out.

vLLM's own connectors believe what a client writes there: a wrong flag or type ends the engine. So
they are only given what is built here, of known keys with checked values.
"""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from moonpool.vllm.pd.hosts import Hosts

NAME_CHARS_MAX = 256
ID_MAX = (1 << 31) - 1
_HOST = re.compile(r"[A-Za-z0-9._:%\-]{1,255}")

Params = dict[str, Any]


class _WrongError(Exception):
    """What is wrong, in a few words."""


@dataclass(frozen=True, slots=True)
class Asked:
    """How long a request's prompt is, in tokens and in the engine's blocks."""

    tokens: int
    blocks: int


@dataclass(frozen=True, slots=True)
class Dialect:
    """What one peer connector reads. role: of that peer; an engine that only sends refuses what
    would make it receive, and the other way round. hosts: those that may be named."""

    peer: str
    role: str
    hosts: Hosts = dataclasses.field(default_factory=Hosts)

    def clean(self, params: Any, asked: Asked) -> tuple[Params | None, str]:
        """Return what the peer may see, None for a request that it has no part in, and why
        something was refused ("" if nothing was). Never raises."""
        if params is None:
            return None, ""
        try:
            return self._clean(params, asked), ""
        except _WrongError as wrong:
            return None, str(wrong)

    def _clean(self, params: Any, asked: Asked) -> Params | None:
        if not isinstance(params, dict):
            raise _WrongError("not an object")
        sends, receives = _flag(params, "do_remote_decode"), _flag(params, "do_remote_prefill")
        if sends and receives:
            raise _WrongError("do_remote_decode and do_remote_prefill at once")
        if sends:
            return self._sender(params)
        return self._receiver(params, asked) if receives else None

    def _sender(self, params: Params) -> Params:
        if self.role == "kv_consumer":
            raise _WrongError("do_remote_decode on an instance that only receives")
        found: Params = {"do_remote_decode": True, "do_remote_prefill": False}
        if self.peer == "mooncake":
            found["transfer_id"] = _name(params, "transfer_id")
        return found

    def _receiver(self, params: Params, asked: Asked) -> Params:
        if self.role == "kv_producer":
            raise _WrongError("do_remote_prefill on an instance that only sends")
        found, host = (_mooncake if self.peer == "mooncake" else _nixl)(params, asked)
        if not self.hosts.allow(host):
            raise _WrongError("the host is none of peer_hosts")
        return {"do_remote_decode": False, "do_remote_prefill": True, **found}


def address_of(params: Params) -> tuple[str, int] | None:
    """Return where the instance listens that cleaned parameters of a receiver name."""
    if "remote_host" in params:
        return params["remote_host"], params["remote_port"]
    parts = urlsplit(params.get("remote_bootstrap_addr", ""))
    default = 443 if parts.scheme == "https" else 80
    return (parts.hostname, parts.port or default) if parts.hostname else None


def _nixl(params: Params, asked: Asked) -> tuple[Params, str]:
    if params.get("transfer_mode", "pull") != "pull":
        raise _WrongError("transfer_mode is not pull")
    for key in ("tp_size", "dcp_size", "pp_size"):
        if params.get(key, 1) is not True and params.get(key, 1) == 1:
            continue
        raise _WrongError(f"{key} is not 1")
    host = params.get("remote_host")
    if not isinstance(host, str) or not _HOST.fullmatch(host):
        raise _WrongError("remote_host is no host")
    found = {
        "remote_engine_id": _name(params, "remote_engine_id"),
        "remote_request_id": _name(params, "remote_request_id"),
        "remote_host": host,
        "remote_port": _number(params, "remote_port", 1, 65_535),
        "remote_block_ids": [_blocks(params, asked)],
        "tp_size": 1,
        "dcp_size": 1,
        "pp_size": 1,
    }
    if params.get("remote_num_tokens") is not None:
        least = asked.tokens if asked.tokens > 1 else 0
        found["remote_num_tokens"] = _number(params, "remote_num_tokens", least, ID_MAX)
    return found, host


def _blocks(params: Params, asked: Asked) -> list[int]:
    groups = params.get("remote_block_ids")
    if not isinstance(groups, list | tuple) or len(groups) != 1:
        raise _WrongError("remote_block_ids is not one list of blocks")
    blocks = groups[0]
    # Blocks are paired from the end: with one more than the prompt has, all would be wrong. Only
    # vLLM's own request to let go, with a prompt of one token, may name any number.
    letting_go = asked.tokens == 1 and isinstance(blocks, list | tuple) and len(blocks) > 0
    if not isinstance(blocks, list | tuple) or not (letting_go or len(blocks) == asked.blocks):
        raise _WrongError(f"remote_block_ids does not hold the prompt's {asked.blocks} blocks")
    if not all(type(block) is int and 0 <= block <= ID_MAX for block in blocks):
        raise _WrongError("remote_block_ids holds something else than block numbers")
    return list(blocks)


def _mooncake(params: Params, asked: Asked) -> tuple[Params, str]:
    address, host = _address(params, "remote_bootstrap_addr")
    return {
        "transfer_id": _name(params, "transfer_id"),
        "remote_engine_id": _name(params, "remote_engine_id"),
        "remote_bootstrap_addr": address,
    }, host


def _address(params: Params, key: str) -> tuple[str, str]:
    text = _name(params, key)
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise _WrongError(f"{key} is no address") from None
    host = parts.hostname or ""
    odd = parts.query or parts.fragment or parts.username or parts.path not in ("", "/")
    if parts.scheme not in ("http", "https") or not _HOST.fullmatch(host) or odd:
        raise _WrongError(f"{key} is no address")
    named = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{named}" + (f":{port}" if port else ""), host


def _flag(params: Params, key: str) -> bool:
    value = params.get(key)
    if value is not None and not isinstance(value, bool):
        raise _WrongError(f"{key} is neither true nor false")
    return bool(value)


def _name(params: Params, key: str) -> str:
    value = params.get(key)
    # What cannot be printed cannot be sent either: half of a surrogate pair, for one.
    if not isinstance(value, str) or not 0 < len(value) <= NAME_CHARS_MAX:
        raise _WrongError(f"{key} is not 1 to {NAME_CHARS_MAX} characters")
    if not value.isprintable():
        raise _WrongError(f"{key} holds characters that cannot be printed")
    return value


def _number(params: Params, key: str, low: int, high: int) -> int:
    value = params.get(key)
    if type(value) is not int or not low <= value <= high:
        raise _WrongError(f"{key} is not a whole number from {low} to {high}")
    return value
