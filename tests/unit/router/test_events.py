"""KV events: their forms, their gaps, and a real publisher."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moonpool.router.blockhash import BlockHasher, key_of
from moonpool.router.events import Cleared, Numbering, Removed, Stored, Verdict, read_batch
from moonpool.router.following import Follower
from moonpool.router.index import PrefixIndex
from moonpool.router.instance import EngineFacts, Instance
from moonpool.router.members import Members
from moonpool.router.metrics import RouterMetrics

WAIT_S = 10.0


def _batch(*events: Any) -> bytes:
    return msgspec.msgpack.encode([1.5, list(events), 0])


def _stored(*hashes: int | bytes, **more: Any) -> dict[str, Any]:
    return {"type": "BlockStored", "block_hashes": list(hashes), "parent_block_hash": None,
            "token_ids": [], "block_size": 4, "medium": "GPU", **more}  # fmt: skip


def test_maps_and_arrays_are_read() -> None:
    tokens = list(range(8))
    new = _stored(1, 2, token_ids=tokens)
    old = ["BlockStored", [1, 2], None, tokens, 4, None, "GPU"]
    for event in (new, old):
        (found,) = read_batch(_batch(event))
        assert found == Stored((1, 2), None, tuple(tokens), 4, True)
    removed = {"type": "BlockRemoved", "block_hashes": [1], "medium": "GPU"}
    assert read_batch(_batch(removed, ["BlockRemoved", [2]], {"type": "AllBlocksCleared"})) == [
        Removed((1,)),
        Removed((2,)),
        Cleared(),
    ]


def test_hashes_may_be_bytes_or_integers() -> None:
    digest = bytes(range(32))
    (found,) = read_batch(_batch(_stored(digest, -1)))
    assert isinstance(found, Stored)
    assert found.keys == (key_of(digest), (1 << 64) - 1)


def test_other_media_and_groups_are_left_out() -> None:
    assert not read_batch(
        _batch(_stored(1, medium="CPU"), _stored(2, group_idx=1), {"type": "New"}, 7, [])
    )


def test_vllm_s_own_batches_are_read() -> None:
    events = pytest.importorskip("vllm.distributed.kv_events")
    stored = events.BlockStored(
        block_hashes=[5], parent_block_hash=None, token_ids=[1, 2], block_size=2, lora_id=None,
        medium="GPU", lora_name=None,
    )  # fmt: skip
    removed = events.BlockRemoved(block_hashes=[5], medium="GPU")
    payload = msgspec.msgpack.encode(
        events.EventBatch(ts=1.0, events=[stored, removed, events.AllBlocksCleared()])
    )
    assert read_batch(payload) == [Stored((5,), None, (1, 2), 2, True), Removed((5,)), Cleared()]


_VALUES = st.recursive(
    st.none() | st.integers(-(2**63), 2**64 - 1) | st.binary(max_size=40) | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["type", "block_hashes", "medium", "token_ids"]), inner)
    ),
    max_leaves=12,
)


@given(st.binary(max_size=60) | _VALUES.map(lambda v: msgspec.msgpack.encode([0, [v], 0])))
def test_any_bytes_are_a_batch_or_a_value_error(payload: bytes) -> None:
    with contextlib.suppress(ValueError):
        assert all(isinstance(each, Stored | Removed | Cleared) for each in read_batch(payload))


def test_numbers_tell_gaps_and_restarts() -> None:
    numbering = Numbering()
    assert numbering.take(0) is Verdict.NEXT
    assert numbering.take(3) is Verdict.GAP
    assert [numbering.replayed(number) for number in (1, 2, 3, 4)] == [0, 0, 0, 0]
    # What came by the replay is published as well, and is known.
    assert numbering.take(4) is Verdict.KNOWN
    assert numbering.take(5) is Verdict.NEXT
    assert numbering.take(2) is Verdict.RESTART
    assert numbering.expected == 0


def _follower() -> tuple[Follower, PrefixIndex]:
    index = PrefixIndex()
    return Follower(Instance("http://a"), index, None), index


def test_a_gap_is_filled_by_a_replay() -> None:
    follower, index = _follower()
    assert follower.take(0, _batch(_stored(1)))
    assert not follower.take(2, _batch(_stored(3)))
    follower.replayed(1, _batch(_stored(2)))
    follower.resume(2, _batch(_stored(3)))
    assert index.match([1, 2, 3]) == {0: 3}
    assert (follower.counts.gaps, follower.counts.lost) == (1, 0)


def test_lost_batches_empty_the_index_and_are_counted() -> None:
    follower, index = _follower()
    follower.take(0, _batch(_stored(1)))
    assert not follower.take(5, _batch(_stored(9)))
    follower.resume(5, _batch(_stored(9)))
    assert index.match([1]) == {}
    assert index.match([9]) == {0: 1}
    assert follower.counts.lost == 4


def test_what_was_before_the_router_came_is_not_lost() -> None:
    follower, index = _follower()
    assert not follower.take(1000, _batch(_stored(1)))
    follower.resume(1000, _batch(_stored(1)))
    assert index.held(0) == 1
    assert follower.counts.lost == 0


def test_an_engine_that_restarts_begins_empty() -> None:
    follower, index = _follower()
    follower.take(0, _batch(_stored(1)))
    follower.take(1, _batch(_stored(2)))
    assert follower.take(0, _batch(_stored(7)))
    assert index.match([1]) == {}
    assert index.match([7]) == {0: 1}
    assert follower.take(1, _batch(_stored(8)))
    assert follower.counts.restarts == 1


def test_garbage_is_counted_and_survived() -> None:
    follower, index = _follower()
    follower.take(0, b"\xc1")
    follower.take(1, _batch(_stored(1)))
    assert follower.counts.garbage == 1
    assert index.held(0) == 1


def test_a_stream_that_falls_silent_is_seen() -> None:
    follower, _ = _follower()
    assert not follower.alive
    follower.take(0, _batch(_stored(1)))
    alive = [follower.alive]
    follower._instance.answers += 40
    alive.append(follower.alive)
    assert alive == [True, False]


def test_an_engine_that_hashes_otherwise_is_seen() -> None:
    hasher, tokens = BlockHasher(4), [1, 2, 3, 4]

    def agrees(some: Any, block_tokens: int, key: int) -> bool:
        return key_of(BlockHasher(block_tokens).extend([], some)[0]) == key

    follower = Follower(Instance("http://a"), PrefixIndex(), agrees)
    follower.take(0, _batch(_stored(hasher.extend([], tokens)[0], token_ids=tokens)))
    follower.take(1, _batch(_stored(12345, token_ids=tokens)))
    follower.take(2, _batch(_stored(6, token_ids=tokens, extra_keys=[["salt"]])))
    assert (follower.counts.agreeing, follower.counts.differing) == (1, 1)


class Publisher:
    """vLLM's publisher as far as a subscriber can tell; it can lose batches."""

    def __init__(self) -> None:
        importlib.import_module("zmq.asyncio")
        zmq: Any = importlib.import_module("zmq")
        self.context = zmq.asyncio.Context()
        self.pub = self.context.socket(zmq.PUB)
        self.router = self.context.socket(zmq.ROUTER)
        self.endpoints = tuple(
            f"tcp://127.0.0.1:{each.bind_to_random_port('tcp://127.0.0.1')}"
            for each in (self.pub, self.router)
        )
        self.buffer: list[tuple[int, bytes]] = []
        self.asked: list[int] = []
        self.task = asyncio.create_task(self._serve())

    async def publish(self, *events: Any, lose: bool = False) -> None:
        number, payload = len(self.buffer), _batch(*events)
        self.buffer.append((number, payload))
        if not lose:
            await self.pub.send_multipart([b"", number.to_bytes(8, "big"), payload])

    async def _serve(self) -> None:
        while True:
            client, _, start = await self.router.recv_multipart()
            self.asked.append(int.from_bytes(start, "big"))
            for number, payload in self.buffer:
                if number >= self.asked[-1]:
                    frames = [client, b"", b"", number.to_bytes(8, "big"), payload]
                    await self.router.send_multipart(frames)
            await self.router.send_multipart([client, b"", b"", b"\xff" * 8, b""])

    async def close(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        self.context.destroy(linger=0)


async def _until(happened: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not happened():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def test_subscriptions_follow_a_publisher_and_fill_its_gaps() -> None:
    pytest.importorskip("zmq")
    from moonpool.router.subscribe import Subscriptions

    publisher, index = Publisher(), PrefixIndex()
    members = Members(index)
    instance = members.add("http://a")
    subscriptions = Subscriptions(members, index, RouterMetrics(), sync_s=0.01)
    await publisher.publish(_stored(1))
    running = asyncio.create_task(subscriptions.run())
    try:
        assert subscriptions.describe(instance)["followed"] is False
        members.learn(instance, EngineFacts(events=((publisher.endpoints),)))  # type: ignore[arg-type]
        # What was published before the router came is asked for.
        await _until(lambda: index.held(0) == 1)
        await publisher.publish(_stored(2), lose=True)

        async def nudge() -> None:
            while True:
                await publisher.publish(_stored(3))
                await asyncio.sleep(0.01)

        # A subscriber joins some time after it connects: until then batches are lost anyway.
        nudging = asyncio.create_task(nudge())
        await _until(lambda: index.match([1, 2, 3]) == {0: 3})
        nudging.cancel()
        state = subscriptions.describe(instance)
        assert (state["followed"], state["alive"], state["lost"]) == (True, True, 0)
        assert int(str(state["gaps"])) >= 1
        assert publisher.asked[0] == 0
        members.remove("http://a")
        await _until(lambda: not subscriptions._tasks)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await publisher.close()
