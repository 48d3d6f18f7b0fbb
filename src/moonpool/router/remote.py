"""Token ids from an instance's /tokenize, where the model's tokenizer is not at hand."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from typing import Any

import aiohttp
import msgspec

from moonpool.router.instance import Instance
from moonpool.router.members import Members
from moonpool.router.openai import Fields

TIMEOUT_S = 2.0
KEPT = 256
FAILURES_MAX = 3
# After so many failures in a row it is tried for one of so many requests only.
RETRY_EVERY = 64
TOKENS_MAX = 1 << 21
_NAMES = (
    "model", "messages", "tools", "prompt", "add_generation_prompt", "continue_final_message",
    "add_special_tokens", "chat_template", "chat_template_kwargs", "mm_processor_kwargs",
)  # fmt: skip
_decode = msgspec.json.Decoder(dict[str, msgspec.Raw])
_tokens = msgspec.json.Decoder(list[int])


class RemoteTokenizer:
    """Asks the emptiest instance; the latest answers are kept."""

    def __init__(self, members: Members) -> None:
        self.http: aiohttp.ClientSession | None = None
        self._members = members
        self._kept: OrderedDict[bytes, list[int]] = OrderedDict()
        self._failures = 0
        self._skipped = 0

    @property
    def usable(self) -> bool:
        """Whether answers have come lately, or none was asked for yet."""
        return self._failures < FAILURES_MAX

    async def tokens(self, path: str, fields: Fields) -> list[int] | None:
        """Return a prompt's ids, or None where no instance can tell."""
        if not self.usable:
            self._skipped += 1
            if self._skipped % RETRY_EVERY:
                return None
        if b'"image' in fields.raw("messages") or fields.raw("truncate_prompt_tokens"):
            return None
        raw = {name: msgspec.Raw(text) for name in _NAMES if (text := fields.raw(name))}
        body = msgspec.json.encode(raw)
        key = hashlib.sha256(body).digest()
        found = self._kept.get(key)
        if found is None:
            found = await self._ask(body)
            self._failures = 0 if found is not None else self._failures + 1
            if found is not None:
                self._kept[key] = found
                if len(self._kept) > KEPT:
                    self._kept.popitem(last=False)
        return found

    async def _ask(self, body: bytes) -> list[int] | None:
        instance = self._emptiest()
        if instance is None or self.http is None:
            return None
        try:
            async with self.http.post(
                f"{instance.url}/tokenize",
                data=body,
                headers={"Content-Type": "application/json"},
                timeout=aiohttp.ClientTimeout(total=TIMEOUT_S),
            ) as response:
                answer: Any = await response.read() if response.status == 200 else b"{}"
            ids = _tokens.decode(_decode.decode(answer).get("tokens", msgspec.Raw(b"null")))
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError, RecursionError):
            return None
        return ids if len(ids) <= TOKENS_MAX else None

    def _emptiest(self) -> Instance | None:
        well = [e for e in self._members.instances if e.healthy and not e.circuit.failures]
        return min(well, key=lambda each: each.in_flight, default=None)
