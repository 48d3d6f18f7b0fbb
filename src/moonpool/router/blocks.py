"""Prompts in an engine's own blocks: from token ids, by the engine's own hash."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import aiohttp

from moonpool.errors import ConfigError
from moonpool.router.blockhash import ALGORITHMS, DEFAULT_SEED, BlockHasher, Extra, key_of
from moonpool.router.chains import Chain, Chains, grown
from moonpool.router.encoder import LocalEncoder, NotKnown
from moonpool.router.instance import EngineFacts
from moonpool.router.members import Members
from moonpool.router.openai import Fields
from moonpool.router.prompt import Prompt
from moonpool.router.remote import RemoteTokenizer

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
# So many prompts in a row that an engine counted otherwise: the tokenizer is not the engine's.
MISMATCHES_MAX = 3
# Texts that are longer are encoded beside the event loop, by so many threads.
LONG_CHARS = 65_536
THREADS = 2
# A model's own tokenizer takes so many times as long as tiktoken.
SLOW_TIMES = 8
# Rendering is so many times quicker than encoding; hashing a token takes as long as so many chars.
RENDER_SHARE = 8
HASH_CHARS = 2
# A prompt that takes longer is compared as text; so many may be unfinished. Longer new texts are
# not tried.
WAIT_S = 0.25
MAKING_MAX = 32
TEXT_EFFORT_MAX = 16 << 20
# Prompts that are longer are compared as text.
PROMPT_BYTES_MAX = 8 << 20
REFRESH_S = 1.0
AUTO, INSTANCE, TEXT = "auto", "instance", "text"

R = TypeVar("R")

log = logging.getLogger("moonpool.router.tokens")


class BlockPrompts:
    """Turns requests into token ids and block hashes; says why where it cannot.

    tokenizer: "auto" (the model's directory where it is on this machine, else an instance's
    /tokenize), "instance", "text", or a directory. seed, algorithm, block_tokens: what the engines
    do not say of themselves; empty or 0 takes what they say.
    """

    def __init__(
        self,
        members: Members,
        tokenizer: str = AUTO,
        *,
        seed: str = "",
        algorithm: str = "",
        block_tokens: int = 0,
        load: Callable[[Path], LocalEncoder] = LocalEncoder,
    ) -> None:
        self._members = members
        self._wanted = tokenizer
        self._seed = seed or os.environ.get("PYTHONHASHSEED", "") or DEFAULT_SEED
        self._algorithm, self._block_tokens = algorithm, block_tokens
        self._load = load
        self._version = -1
        self._hasher: BlockHasher | None = None
        self._facts = EngineFacts()
        self._local: LocalEncoder | None = None
        self._chains = Chains(())
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="moonpool-tokens")
        self._making: set[asyncio.Future[Prompt]] = set()
        # Called once a tokenizer is there; what has been made until then stays.
        self.on_load: Callable[[], None] = lambda: None
        self._mismatches = 0
        self._why = "no instance has said how it hashes blocks"
        self._said = ""
        self.remote = RemoteTokenizer(members)

    @property
    def kind(self) -> str:
        """ "local", "instance" or "text": where token ids come from."""
        if self._hasher is None or self._wanted == TEXT:
            return TEXT
        if self._local is not None:
            return "local"
        return INSTANCE if self.remote.usable else TEXT

    def start(self, http: aiohttp.ClientSession) -> None:
        """Take the way to instances."""
        self.remote.http = http

    async def run(self) -> None:
        """Keep up with what instances say of themselves, until cancelled."""
        while True:
            if self._version != self._members.version:
                self._version = self._members.version
                await self.refresh()
            self._say()
            await asyncio.sleep(REFRESH_S)

    async def refresh(self) -> None:
        """Take the hash and the tokenizer that the instances use."""
        facts = next((e.facts for e in self._members.instances if e.facts.block_tokens), None)
        self._facts = facts or next((e.facts for e in self._members.instances), self._facts)
        folder = self._folder()
        self._hasher = self._hasher_for(self._facts)
        if folder is None or (self._local is not None and self._local.folder == folder):
            return
        try:
            self._local = await asyncio.to_thread(self._load, folder)
        except ConfigError as error:
            self._why = str(error)
        else:
            self._mismatches = 0
            self._chains = self._new_chains()
            self.on_load()

    def _new_chains(self) -> Chains:
        marks = self._local.marks if self._local is not None else ()
        return Chains(marks, secret=secrets.randbits(63))

    def _hasher_for(self, facts: EngineFacts) -> BlockHasher | None:
        size = self._block_tokens or facts.block_tokens
        algorithm = self._algorithm or facts.hash_algorithm or ALGORITHMS[0]
        if not size:
            self._why = "no instance has said how many tokens a block has"
            return None
        tagged = not facts.version or _minor(facts.version) >= (0, 31)
        known = self._hasher
        if known is not None and (known.block_tokens, known.algorithm) == (size, algorithm):
            return known
        try:
            made = BlockHasher(size, algorithm, self._seed, tagged=tagged)
        except ConfigError as error:
            self._why = str(error)
            return None
        self._chains = self._new_chains()
        return made

    def _folder(self) -> Path | None:
        if self._wanted in (INSTANCE, TEXT):
            self._why = f"tokenizer is {self._wanted!r}"
            return None
        folder = Path(self._wanted if self._wanted != AUTO else self._facts.root or "\0none")
        try:
            there = folder.is_dir()
        except (OSError, ValueError):
            there = False
        if not there:
            self._why = f"the model {self._facts.root or 'of the instances'} is not on this machine"
        return folder if there else None

    async def prompt(self, path: str, fields: Fields) -> Prompt | None:
        """Return the prompt in the engines' blocks, or None where that cannot be told."""
        hasher = self._hasher
        if hasher is None or self._wanted == TEXT or path not in (CHAT, COMPLETION):
            return None
        size = len(fields.raw("messages")) + len(fields.raw("prompt"))
        if size > PROMPT_BYTES_MAX:
            return None
        try:
            if size <= LONG_CHARS or self._local is None:
                return await self._made(path, fields, hasher)
            return await self._in_time(self._made(path, fields, hasher))
        except NotKnown:
            return None

    async def _in_time(self, making: Coroutine[Any, Any, Prompt]) -> Prompt | None:
        """Return a long prompt, or None where that takes too long: it is then done for later."""
        if len(self._making) >= MAKING_MAX:
            making.close()
            return None
        task = asyncio.ensure_future(making)
        self._making.add(task)
        task.add_done_callback(self._made_late)
        done, _ = await asyncio.wait({task}, timeout=WAIT_S)
        return task.result() if done else None

    def _made_late(self, task: asyncio.Future[Prompt]) -> None:
        self._making.discard(task)
        if not task.cancelled():
            task.exception()

    async def _made(self, path: str, fields: Fields, hasher: BlockHasher) -> Prompt:
        extra = self._extra(fields)
        ids = _given(fields) if path == COMPLETION else None
        if ids is None and self._local is None:
            ids = await self.remote.tokens(path, fields)
            if ids is None:
                raise NotKnown("no instance tells")
        elif ids is None and path == COMPLETION:
            assert self._local is not None
            text = _text(fields)
            ids = await self._beside(self._effort(text), self._local.encode_plain, text)
        if ids is None:
            chain = await self._chat(fields, hasher, extra)
        else:
            chain = Chain(len(ids), ids)
            await self._hash(chain, hasher, extra)
        size = float(hasher.block_tokens)
        return Prompt(chain.keys, float(chain.length), size, True, chain.hashes)

    async def _chat(self, fields: Fields, hasher: BlockHasher, extra: Extra | None) -> Chain:
        local, chains = self._local, self._chains
        assert local is not None
        size = len(fields.raw("messages"))
        text = await self._beside(size // RENDER_SHARE, local.render, fields)
        search = chains.search(repr((extra, hasher.block_tokens)).encode(), text)
        rest = search.rest
        ids, places = await self._beside(self._effort(rest), local.encode, rest)
        chain = grown(search, ids, hasher.block_tokens)
        await self._hash(chain, hasher, extra)
        chains.keep(search, chain, places, hasher.block_tokens)
        return chain

    async def _hash(self, chain: Chain, hasher: BlockHasher, extra: Extra | None) -> None:
        size = len(chain.fresh) * HASH_CHARS
        await self._beside(size, hasher.append, chain.hashes, chain.fresh, extra)
        chain.keys.extend(map(key_of, chain.hashes[len(chain.keys) :]))

    def _effort(self, text: str) -> int:
        """Return how many characters the quick way would encode in the time that a text takes."""
        quick = self._local is not None and self._local.quick is not None
        return len(text) * (1 if quick else SLOW_TIMES)

    async def _beside(self, size: int, work: Callable[..., R], *arguments: Any) -> R:
        """Return what the work gives; where it is large, other requests go on meanwhile."""
        if size <= LONG_CHARS:
            return work(*arguments)
        if size > TEXT_EFFORT_MAX:
            raise NotKnown("too long")
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, work, *arguments)

    def _extra(self, fields: Fields) -> Extra | None:
        name, salt = fields.text("model"), fields.text("cache_salt")
        path = self._facts.loras.get(name)
        if path is None and not salt:
            return None
        return Extra((name, path) if path is not None else None, salt or None)

    def agrees(self, tokens: Sequence[int], block_tokens: int, key: int) -> bool | None:
        """Return whether the router's hash of a prompt's first block is an engine's."""
        hasher = self._hasher
        if hasher is None:
            return None
        if hasher.block_tokens != block_tokens:
            return False
        return key_of(hasher.extend([], tokens)[0]) == key

    def counted(self, prompt: Prompt, prompt_tokens: int) -> bool:
        """Note what an engine counted; a tokenizer that disagrees again and again is left."""
        if prompt.tokens == prompt_tokens:
            self._mismatches = 0
            return True
        self._mismatches += 1
        if self._mismatches >= MISMATCHES_MAX and self._local is not None and self._local.quick:
            # First the suspicion falls on what stands in for the model's own tokenizer.
            log.warning("engines count other tokens: texts are encoded by %s", self._local.folder)
            self._local.quick, self._chains = None, self._new_chains()
            self._mismatches = 0
        elif self._mismatches >= MISMATCHES_MAX and self._local is not None:
            self._why = f"{self._local.folder} counts other tokens than the engines"
            self._local, self._wanted = None, INSTANCE
            self._mismatches = 0
        elif self._mismatches >= MISMATCHES_MAX:
            self._why, self._wanted = "/tokenize counts other tokens than the engines", TEXT
        return False

    def _say(self) -> None:
        if self.kind != self._said:
            self._said = self.kind
            if self.kind == TEXT:
                log.warning("prompts are compared as text, an approximation: %s", self._why)
            else:
                log.info("prompts are known as tokens (%s)", self.kind)

    def describe(self) -> dict[str, object]:
        """Return how prompts are known, for people."""
        state: dict[str, object] = {"kind": self.kind}
        if self.kind == TEXT:
            state["why"] = self._why
        if self._hasher is not None:
            state |= {"hash": self._hasher.algorithm, "block_tokens": self._hasher.block_tokens}
        if self._local is not None and self.kind == "local":
            state |= {"tokenizer": str(self._local.folder), "cached_bytes": self._chains.held_bytes}
        return state


def _given(fields: Fields) -> list[int] | None:
    """Return the ids where the client sent ids."""
    if not fields.raw("prompt").startswith(b"["):
        return None
    ids: Any = fields.get("prompt")
    if len(ids) == 1 and isinstance(ids[0], list):
        ids = ids[0]
    if not ids or any(type(each) is not int or not 0 <= each < 1 << 31 for each in ids):
        if len(ids) == 1 and isinstance(ids[0], str):
            return None
        raise NotKnown("several prompts")
    return list(ids)


def _text(fields: Fields) -> str:
    value = fields.get("prompt")
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if not isinstance(value, str) or fields.raw("truncate_prompt_tokens"):
        raise NotKnown("no text")
    if fields.raw("prompt_embeds") or fields.raw("add_special_tokens") == b"false":
        raise NotKnown("not encoded as usual")
    return value


def _minor(version: str) -> tuple[int, int]:
    numbers = [int("".join(filter(str.isdigit, part)) or 0) for part in version.split(".")[:2]]
    return (numbers[0], numbers[1]) if len(numbers) == 2 else (0, 0)
