"""Token ids: the same as the whole text's, whatever is taken from a cache."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from moonpool.errors import ConfigError
from moonpool.router import blocks
from moonpool.router.blockhash import BlockHasher, Extra
from moonpool.router.blocks import CHAT, COMPLETION, BlockPrompts
from moonpool.router.chains import Chain, Chains, Search, grown
from moonpool.router.index import PrefixIndex
from moonpool.router.instance import EngineFacts
from moonpool.router.knowledge import Knowledge
from moonpool.router.members import Members
from moonpool.router.metrics import RouterMetrics
from moonpool.router.openai import Fields
from moonpool.router.text import TextPrompts, session_of
from moonpool.router.usage import Tail, Usage
from tests.unit.router.upstream import serving_app

pytestmark = pytest.mark.filterwarnings("ignore")

TEMPLATE = (
    "<|begin|>{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}"
    "<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
MARKS = ["<|begin|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>"]
CORPUS = ["the quick brown fox jumps over the lazy dog " * 20, "1234 5678 don't  they'll \n\n x"]
BLOCK = 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer with merges and a splitting pattern, as most models have."""
    tokenizers = pytest.importorskip("tokenizers")
    pytest.importorskip("transformers")
    place = tmp_path_factory.mktemp("model")
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=400,
        show_progress=False,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
    )
    made.train_from_iterator(CORPUS, trainer)
    made.add_special_tokens([tokenizers.AddedToken(m, special=True) for m in MARKS])
    made.save(str(place / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": TEMPLATE}
    (place / "tokenizer_config.json").write_text(json.dumps(config))
    return place


@pytest.fixture(scope="module")
def encoder(folder: Path) -> Any:
    from moonpool.router.encoder import LocalEncoder

    return LocalEncoder(folder)


def _fields(**body: Any) -> Fields:
    return Fields(json.dumps(body).encode())


def _chat(*texts: str, **more: Any) -> Fields:
    roles = ["system", "user", "assistant"]
    messages = [
        {"role": roles[0 if place == 0 else 2 - place % 2], "content": text}
        for place, text in enumerate(texts)
    ]
    return _fields(messages=messages, **more)


async def _prompts(folder: Path | str, facts: EngineFacts | None = None) -> BlockPrompts:
    members = Members(PrefixIndex())
    instance = members.add("http://127.0.0.1:9")
    members.learn(instance, facts or EngineFacts(block_tokens=BLOCK))
    prompts = BlockPrompts(members, str(folder))
    await prompts.refresh()
    return prompts


HASHER = BlockHasher(BLOCK)


def _add(chains: Chains, search: Search, encoder: Any) -> Chain:
    ids, places = encoder.encode(search.rest)
    chain = grown(search, ids, BLOCK)
    HASHER.append(chain.hashes, chain.fresh)
    chains.keep(search, chain, places, BLOCK)
    return chain


_TEXTS = st.lists(
    st.text(alphabet="ab \n'é<|>12", max_size=12)
    | st.sampled_from(["<|user|>", "<|en", " x<|end|>"]),
    min_size=1,
    max_size=6,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(_TEXTS, min_size=1, max_size=5))
def test_ids_of_growing_texts_are_exact(encoder: Any, chats: list[list[str]]) -> None:
    chains = Chains(encoder.marks)
    for texts in chats:
        for turn in range(1, len(texts) + 1):
            text = encoder.render(_chat(*texts[:turn]))
            found = chains.search(b"", text)
            chain = _add(chains, found, encoder)
            ids = encoder.encode(text)[0]
            assert chain.length == len(ids)
            assert chain.hashes == HASHER.extend([], ids)


async def test_only_what_is_new_is_encoded_and_hashed(folder: Path, encoder: Any) -> None:
    chains = Chains(encoder.marks)
    texts = ["be brief " * 50, "hello " * 50]
    first = chains.search(b"", encoder.render(_chat(*texts)))
    chain = _add(chains, first, encoder)
    whole = encoder.render(_chat(*texts, "yes", "why"))
    second = chains.search(b"", whole)
    assert len(second.rest) < 60
    before = chain.hashes
    longer = _add(chains, second, encoder)
    assert longer.hashes[: len(before) - 1] == before[:-1]
    assert longer.hashes == HASHER.extend([], encoder.encode(whole)[0])
    # The shorter one has become the longer.
    assert [*chains._chains] == [chain]
    assert chain.hashes == longer.hashes
    assert chains.search(b"other", whole).rest == whole


def test_memory_for_ids_is_bounded(encoder: Any) -> None:
    chains = Chains(encoder.marks, bytes_max=20_000)
    for number in range(50):
        found = chains.search(b"", encoder.render(_chat("system", f"{number} " * 20)))
        _add(chains, found, encoder)
        assert chains.held_bytes <= 20_000
    assert 0 < len(chains._chains) < 20
    assert {cut.chain for cut in chains._cuts.values()} == set(chains._chains)
    assert sum(chains._chains.values()) == chains.held_bytes


async def test_a_chat_s_hashes_are_the_engine_s(folder: Path, encoder: Any) -> None:
    prompts = await _prompts(folder)
    assert prompts.kind == "local"
    prompt = await prompts.prompt(CHAT, _chat("be brief", "hello there, how are you"))
    assert prompt is not None
    ids = encoder.encode(encoder.render(_chat("be brief", "hello there, how are you")))[0]
    assert prompt.exact
    assert prompt.tokens == len(ids)
    assert list(prompt.hashes) == BlockHasher(BLOCK).extend([], ids)


async def test_salt_and_adapter_are_in_the_hashes(folder: Path) -> None:
    facts = EngineFacts(block_tokens=BLOCK, loras={"tuned": "/l"}, version="0.32.0")
    prompts = await _prompts(folder, facts)
    ids = list(range(40))
    for extra, more in (
        (Extra(salt="s"), {"cache_salt": "s"}),
        (Extra(("tuned", "/l")), {"model": "tuned"}),
        (None, {"model": "base"}),
    ):
        prompt = await prompts.prompt(COMPLETION, _fields(prompt=ids, **more))
        assert prompt is not None
        assert list(prompt.hashes) == BlockHasher(BLOCK).extend([], ids, extra)


async def test_a_completion_is_encoded_whole(folder: Path, encoder: Any) -> None:
    prompts = await _prompts(folder)
    for value in ("the quick brown", ["the quick brown"]):
        prompt = await prompts.prompt(COMPLETION, _fields(prompt=value))
        assert prompt is not None
        assert prompt.tokens == len(encoder.encode_plain("the quick brown"))


@pytest.mark.parametrize(
    "body",
    [
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}]},
        {"messages": [{"role": "user", "content": "x"}], "chat_template": "{{ 1 }}"},
        {"messages": []},
        {"messages": "x"},
        {"messages": [7]},
        {"messages": [{"role": "user", "tool_calls": [{"function": {"arguments": "{"}}]}]},
    ],
)
async def test_what_may_be_rendered_otherwise_is_not_guessed(folder: Path, body: Any) -> None:
    assert await (await _prompts(folder)).prompt(CHAT, _fields(**body)) is None


@pytest.mark.parametrize("value", [[], ["a", "b"], [[1], [2]], 7, None, [1, -1], [1, 2**40], {}])
async def test_odd_prompts_are_not_guessed(folder: Path, value: Any) -> None:
    assert await (await _prompts(folder)).prompt(COMPLETION, _fields(prompt=value)) is None


async def test_a_tokenizer_that_disagrees_is_left(folder: Path) -> None:
    prompts = await _prompts(folder)
    prompt = await prompts.prompt(CHAT, _chat("s", "hello"))
    assert prompt is not None
    right = int(prompt.tokens)
    for _ in range(3):
        assert prompts._local is not None
        assert prompts._local.quick is not None
        prompts.counted(prompt, right + 1)
    # The model's own tokenizer gets another chance without its stand-in.
    assert prompts._local is not None
    assert prompts._local.quick is None
    for count in (right + 1, right + 1, right, right + 1, right + 1):
        assert prompts.counted(prompt, count) is (count == right)
    assert prompts.kind == "local"
    prompts.counted(prompt, right + 1)
    assert prompts.kind == "instance"
    for _ in range(3):
        prompts.counted(prompt, right + 1)
    assert prompts.kind == "text"
    assert "counts other tokens" in str(prompts.describe()["why"])


async def test_without_a_block_size_prompts_are_text_and_it_says_so(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    prompts = await _prompts(folder, EngineFacts())
    metrics = RouterMetrics()
    knowledge = Knowledge(metrics, prompts)
    prompt = await knowledge.prompt(CHAT, _chat("s" * 2000, "u"))
    assert not prompt.exact
    assert len(prompt.keys) == 8
    prompts._say()
    assert "an approximation: no instance has said how many tokens" in caplog.text
    assert "moonpool_router_exact_prompts 0.0" in metrics.text().decode()
    assert knowledge.describe()["prompts"] == {"kind": "text", "why": prompts._why}


async def test_a_folder_that_is_none_is_named(tmp_path: Path) -> None:
    from moonpool.router.encoder import LocalEncoder

    pytest.importorskip("transformers")
    with pytest.raises(ConfigError, match="cannot be used"):
        LocalEncoder(tmp_path)
    prompts = await _prompts(tmp_path)
    assert prompts.kind == "instance"


async def test_ids_come_from_an_instance_where_no_tokenizer_is_here() -> None:
    asked = []

    async def tokenize(request: web.Request) -> web.Response:
        asked.append(await request.json())
        if asked[-1].get("prompt") == "broken":
            return web.json_response({"tokens": "x"})
        return web.json_response({"count": 8, "tokens": list(range(8)), "max_model_len": 9})

    app = web.Application()
    app.router.add_post("/tokenize", tokenize)
    async with serving_app(app) as url, aiohttp.ClientSession() as http:
        prompts = await _prompts("instance")
        prompts._members.add(url)
        prompts._members.remove("http://127.0.0.1:9")
        prompts.remote.http = http
        for _ in range(2):
            prompt = await prompts.prompt(CHAT, _chat("s", "u", model="m", temperature=1))
            assert prompt is not None
            assert list(prompt.hashes) == BlockHasher(BLOCK).extend([], range(8))
        assert len(asked) == 1
        assert sorted(asked[0]) == ["messages", "model"]
        for number in range(3):
            body = _fields(prompt="broken", add_special_tokens=bool(number % 2), model=str(number))
            assert await prompts.prompt(COMPLETION, body) is None
        assert prompts.kind == "text"
        assert len(asked) == 4
        assert await prompts.prompt(COMPLETION, _fields(prompt="fine")) is None


async def test_large_prompts_do_not_hold_the_loop(folder: Path) -> None:
    prompts = await _prompts(folder)
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    prompt = await prompts.prompt(COMPLETION, _fields(prompt=list(range(BLOCK * 4096))))
    counting.cancel()
    assert prompt is not None
    assert len(prompt.keys) == 4096
    assert turns > 1


def test_text_prompts_share_keys_while_a_chat_grows() -> None:
    texts = TextPrompts()
    first = texts.prompt(CHAT, _chat("s" * 1000, "u" * 500))
    second = texts.prompt(CHAT, _chat("s" * 1000, "u" * 500, "a" * 700, "u2"))
    shared = [one for one, two in zip(first.keys, second.keys, strict=False) if one == two]
    assert len(shared) == len(first.keys) == 6
    salted = texts.prompt(CHAT, _chat("s" * 1000, "u" * 500, cache_salt="x"))
    assert not set(salted.keys) & set(first.keys)
    assert not texts.prompt("/v1/embeddings", _fields(input="x" * 1000)).keys


def test_the_length_of_tokens_is_learned() -> None:
    texts = TextPrompts()
    for _ in range(200):
        prompt = texts.prompt(COMPLETION, _fields(prompt="x" * 3000))
        texts.learn(prompt, 1000)
    assert texts.prompt(COMPLETION, _fields(prompt="x" * 3000)).tokens == pytest.approx(1000, 0.02)


def test_a_session_is_the_head_of_a_conversation() -> None:
    chats = [_chat("s", "first"), _chat("s", "first", "answer", "more"), _chat("s", "other")]
    one, grown, other = (session_of(CHAT, chat) for chat in chats)
    assert one == grown != other
    assert session_of(COMPLETION, _fields(prompt="x" * 5000)) == session_of(
        COMPLETION, _fields(prompt="x" * 6000)
    )
    assert session_of("/v1/embeddings", _fields(input="x")) == ""


def test_usage_is_read_in_passing() -> None:
    tail = Tail()
    tail.feed(b'data: {"text": "say \\"prompt_tokens\\": 5"}\n\n')
    assert tail.usage() is None
    tail.feed(b"x" * 9000)
    for part in (b'{"usage": {"prompt_to', b'kens": 120, "prompt_tokens_details": {"cached_tok'):
        tail.feed(part)
    tail.feed(b'ens": 96}}}\n\ndata: [DONE]\n\n')
    assert tail.usage() == Usage(120, 96)


async def test_a_long_prompt_is_not_waited_for_and_known_the_next_time(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = await _prompts(folder)
    go_on, local = threading.Event(), prompts._local
    assert local is not None
    encode = local.encode

    def slow(text: str) -> tuple[list[int], list[int]]:
        go_on.wait(10)
        return encode(text)

    monkeypatch.setattr(local, "encode", slow)
    monkeypatch.setattr(blocks, "WAIT_S", 0.01)
    long = _chat("s", "the quick brown fox " * 5000)
    assert await prompts.prompt(CHAT, long) is None
    # Others are served meanwhile.
    monkeypatch.setattr(local, "encode", encode)
    assert await prompts.prompt(CHAT, _chat("s", "hello")) is not None
    go_on.set()
    monkeypatch.setattr(blocks, "WAIT_S", 10.0)
    async with asyncio.timeout(10):
        while prompts._making:  # noqa: ASYNC110
            await asyncio.sleep(0.002)
    monkeypatch.setattr(local, "encode", lambda text: pytest.fail("encoded again"))
    chains = prompts._chains
    found = chains.search(repr((None, BLOCK)).encode(), local.render(long))
    assert len(found.rest) < 100
    # Too many that are not finished: the next are compared as text at once.
    monkeypatch.setattr(blocks, "MAKING_MAX", 0)
    assert await prompts.prompt(CHAT, long) is None
