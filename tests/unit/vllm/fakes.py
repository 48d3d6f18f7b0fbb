"""Stand-ins: a pool in a dictionary, vLLM's requests, block pool and tensors without vLLM."""

from __future__ import annotations

import ctypes
import hashlib
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from moonpool.core import keys as packed
from moonpool.core.handoffs import claim_of
from moonpool.core.messages import ENDED, FAILED, OPEN, UNHEARD, Awaited, News
from moonpool.errors import MasterUnreachableError, MoonpoolError
from moonpool.transport.base import I64, Pieces
from moonpool.vllm.courier import Courier, Errand
from moonpool.vllm.link import Answer


class Clock:
    """A clock that moves when told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class FakePool:
    """The Store's calls that the connector makes, over a dictionary; failures on demand."""

    def __init__(self) -> None:
        self.objects: dict[bytes, bytes] = {}
        self.parents: dict[bytes, bytes | None] = {}
        self.memory: list[tuple[int, int]] = []
        self.leases: dict[int, list[bytes]] = {}
        self.get_codes: dict[bytes, int] = {}
        self.put_code = 0
        self.down = False
        self.closed = False
        self.removed: list[bytes] = []
        self.lookups = 0
        self.prefetched: list[int] = []
        self.puts = 0
        self.gets: list[list[bytes]] = []
        self.gate: threading.Event | None = None
        self.raises: Exception | None = None
        self.awaits = True
        self.quiet_s = 0.0
        self.news: list[News] = []
        self.questions: list[tuple[list[bytes], str, float, Answer]] = []
        self.keeps = True
        self.sessions: list[tuple[str, list[bytes] | None]] = []
        self._lock = threading.RLock()

    def use_session(self, session: str, keys: Sequence[Any]) -> None:
        self._up()
        self.sessions.append((session, [key for key in keys if key in self.objects]))

    def end_session(self, session: str) -> int:
        self._up()
        self.sessions.append((session, None))
        return 7

    def tell(self, news: Sequence[News]) -> None:
        self._up()
        with self._lock:
            self.news += news
        self.notice()

    def state_of(self, transfer: str) -> int:
        states = [each.state for each in self.news if each.transfer == transfer]
        return states[-1] if states else UNHEARD

    def coming(self, keys: Sequence[Any]) -> int:
        self._up()
        states = [key in self.objects or self.state_of(claim_of(key)) == OPEN for key in keys]
        return states.index(False) if False in states else len(states)

    def watch(self, keys: Sequence[Any], transfer: str, wait_s: float, answer: Answer) -> None:
        self._up()
        with self._lock:
            self.questions.append((list(keys), transfer, wait_s, answer))
        self.notice()

    def notice(self, *, late: bool = False) -> None:
        """Answer the questions that can be answered now, or with ``late`` all of them."""
        with self._lock:
            asked, self.questions = self.questions, []
        for keys, transfer, wait_s, answer in asked:
            there = [key in self.objects for key in keys]
            count = there.index(False) if False in there else len(there)
            state = self.state_of(transfer)
            if count or late or state in (ENDED, FAILED):
                answer(Awaited(count, state, self.quiet_s))
            else:
                with self._lock:
                    self.questions.append((keys, transfer, wait_s, answer))

    def _up(self) -> None:
        if self.raises is not None:
            raise self.raises
        if self.down:
            raise MasterUnreachableError("no master")

    def prefetch(
        self, namespace: bytes, digests: bytes, stride: int = 1, digest_bytes: int = 16
    ) -> int:
        self._up()
        self.prefetched.append(len(digests) // digest_bytes)
        return 0

    def match_digests(
        self, namespace: bytes, digests: bytes, stride: int = 1, digest_bytes: int = 16
    ) -> int:
        self._up()
        self.lookups += 1
        names = [digests[at : at + 16] for at in range(0, len(digests), 16)]
        here = [packed.pack(name, namespace) in self.objects for name in names]
        full = 0
        while full + stride <= len(here) and here[full + stride - 1]:
            full += stride
        tails = [n for n in range(full + 1, min(full + stride, len(here) + 1)) if here[n - 1]]
        return max(tails, default=full)

    def exists_batch(self, keys: Sequence[Any]) -> list[bool]:
        self._up()
        return [key in self.objects for key in keys]

    def hold(self, keys: Sequence[Any], ttl_s: float) -> int:
        self._up()
        self.leases[len(self.leases) + 1] = list(keys)
        return len(self.leases)

    def release(self, lease: Any) -> None:
        self.leases[lease] = []

    def register_memory(self, address: int, nbytes: int) -> None:
        self.memory.append((address, nbytes))

    def open_ways(self) -> int:
        return 1

    def _check(self, address: int, length: int) -> None:
        inside = any(at <= address and address + length <= at + n for at, n in self.memory)
        assert inside, "memory that was not registered"

    def get_pieces(
        self,
        keys: Sequence[Any],
        pieces: Pieces,
        *,
        timeout_s: float | None = None,
        exact: bool = False,
    ) -> I64:
        assert exact, "an engine's blocks must be filled, or not touched"
        if self.gate is not None:
            assert self.gate.wait(20)
        self._up()
        self.gets.append(list(keys))
        codes = np.zeros(len(keys), np.int64)
        for at, key in enumerate(keys):
            value = self.objects.get(key)
            code = self.get_codes.get(key, 0 if value is not None else -704)
            codes[at] = code
            if code == 0 and value is not None:
                self._scatter(pieces, at, value)
        return codes

    def _scatter(self, pieces: Pieces, at: int, value: bytes) -> None:
        begin, end = pieces.starts[at : at + 2]
        assert int(pieces.lengths[begin:end].sum()) == len(value)
        offset = 0
        for address, length in zip(
            pieces.addresses[begin:end].tolist(), pieces.lengths[begin:end].tolist(), strict=True
        ):
            self._check(address, length)
            ctypes.memmove(address, value[offset : offset + length], length)
            offset += length

    def put_pieces(
        self,
        keys: Sequence[Any],
        pieces: Pieces,
        *,
        parents: Sequence[Any] | None = None,
        timeout_s: float | None = None,
    ) -> I64:
        if self.gate is not None:
            assert self.gate.wait(20)
        self._up()
        self.puts += 1
        codes = np.full(len(keys), self.put_code, np.int64)
        for at, key in enumerate(keys):
            if key in self.objects:
                codes[at] = -705
            elif not self.put_code:
                self.objects[key] = self._gather(pieces, at)
                self.parents[key] = parents[at] if parents is not None else None
        self.notice()
        return codes

    def _gather(self, pieces: Pieces, at: int) -> bytes:
        begin, end = pieces.starts[at : at + 2]
        parts = []
        for address, length in zip(
            pieces.addresses[begin:end].tolist(), pieces.lengths[begin:end].tolist(), strict=True
        ):
            self._check(address, length)
            parts.append(ctypes.string_at(address, length))
        return b"".join(parts)

    def remove_batch(self, keys: Sequence[Any], force: bool = False) -> list[int]:
        self.removed += keys
        return [0 if self.objects.pop(key, None) is not None else -704 for key in keys]

    def close(self) -> None:
        self.closed = True


class FakeLink:
    """A link that is open, or not."""

    def __init__(self, pool: FakePool | None) -> None:
        self.pool = pool
        self.failures: list[Exception] = []

    def get(self) -> FakePool | None:
        return self.pool

    @property
    def connected(self) -> bool:
        return self.pool is not None

    def worked(self) -> None:
        return

    def failed(self, error: Exception) -> None:
        self.failures.append(error)

    def start(self) -> None:
        return

    def close(self) -> None:
        return


class InlineCourier(Courier):
    """Runs errands at once, or when told to: no threads."""

    def __init__(self, *, at_once: bool = True, limit: int = 1 << 30) -> None:
        self.at_once, self.limit, self.closed = at_once, limit, False
        self.errands: list[Errand] = []

    def submit(self, errand: Errand) -> bool:
        if self.closed or len(self.errands) >= self.limit:
            return False
        self.errands.append(errand)
        if self.at_once:
            self.run()
        return True

    def run(self) -> None:
        errands, self.errands = self.errands, []
        for errand in errands:
            try:
                errand()
            except MoonpoolError:
                continue

    def close(self, timeout_s: float = 1.0) -> None:
        self.closed = True


def hashes_of(tokens: Sequence[int], block_size: int) -> list[bytes]:
    """Chained 32-byte hashes of full blocks, like vLLM's."""
    found: list[bytes] = []
    last = b"none"
    for at in range(0, len(tokens) - len(tokens) % block_size, block_size):
        last = hashlib.sha256(last + repr(list(tokens[at : at + block_size])).encode()).digest()
        found.append(last)
    return found


class FakeRequest:
    """What the connector reads of vllm.v1.request.Request."""

    def __init__(self, request_id: str, tokens: Sequence[int], block_size: int = 4) -> None:
        self.request_id, self.block_size = request_id, block_size
        self.tokens = list(tokens)
        self.num_prompt_tokens = len(self.tokens)
        self.num_computed_tokens = 0
        self.num_preemptions = 0
        self.num_in_flight_tokens = 0
        self.skip_reading_prefix_cache = False
        self.kv_transfer_params: Any = None
        self.block_hashes = hashes_of(self.tokens, block_size)

    @property
    def num_tokens(self) -> int:
        return len(self.tokens)

    def append(self, token: int) -> None:
        self.tokens.append(token)
        self.block_hashes[:] = hashes_of(self.tokens, self.block_size)


@dataclass(eq=False)
class FakeBlock:
    block_id: int
    ref_cnt: int = 0


@dataclass
class FakeBlockPool:
    """Reference counts and the order of freeing."""

    num_gpu_blocks: int = 64
    blocks: list[FakeBlock] = field(default_factory=list)
    freed: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.blocks = [FakeBlock(n) for n in range(self.num_gpu_blocks)]

    def touch(self, blocks: Sequence[FakeBlock]) -> None:
        for block in blocks:
            block.ref_cnt += 1

    def free_blocks(self, blocks: Any) -> None:
        for block in blocks:
            block.ref_cnt -= 1
            assert block.ref_cnt >= 0
            self.freed.append(block.block_id)

    @property
    def held(self) -> list[int]:
        return [block.block_id for block in self.blocks if block.ref_cnt]


class BlockState:
    """vLLM's KVConnectorBlockState: the current tables of the scheduled requests."""

    def __init__(self, tables: dict[str, list[int]]) -> None:
        self.tables = tables

    def get_block_ids(self, request_id: str) -> tuple[list[int], ...] | None:
        table = self.tables.get(request_id)
        return None if table is None else (table,)
