"""What the engine and its mover tell each other: msgpack in frames, over a pair of sockets."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from moonpool.errors import ProtocolError
from moonpool.protocol.framing import frame
from moonpool.transport.base import I64, U64
from moonpool.vllm.jobs import LoadDone, LoadJob, SaveDone, SaveJob
from moonpool.vllm.layout import RegionTable
from moonpool.vllm.objects import I32
from moonpool.vllm.settings import Settings

NO_MARK = -1


class Region(msgspec.Struct, frozen=True):
    """A stretch of the engine's GPU memory: its address there, and how to open it."""

    address: int
    nbytes: int
    shared: dict[str, Any]


class Table(msgspec.Struct, array_like=True, frozen=True):
    """A RegionTable. bases, strides, lengths: little endian uint64; columns: int32."""

    bases: bytes
    strides: bytes
    lengths: bytes
    columns: bytes
    width: int
    num_blocks: int


class Setup(msgspec.Struct, tag="setup", frozen=True):
    """Engine to mover, once: what there is. tables: by the jobs' part."""

    settings: Settings
    name: str
    tables: list[Table]
    regions: list[Region]
    scratch: int
    events: list[bytes]


class Ready(msgspec.Struct, tag="ready", frozen=True):
    """Mover to engine, once: the memory is open, or why not."""

    error: str = ""


class Load(msgspec.Struct, array_like=True, frozen=True):
    """A LoadJob. Arrays are little endian int32."""

    request_id: str
    generation: int
    namespace: bytes
    names: bytes
    starts: bytes
    ends: bytes
    block_ids: bytes
    first_block: int
    transfer: str = ""
    patience_s: float = 0.0
    part: int = 0


class Save(msgspec.Struct, array_like=True, frozen=True):
    """A SaveJob. Arrays are little endian int32."""

    job_id: int
    namespace: bytes
    names: bytes
    parents: bytes
    counts: bytes
    block_ids: bytes
    urgent: bool = False
    part: int = 0


class Begin(msgspec.Struct, tag="begin", frozen=True):
    """Engine to mover: jobs that begin once what the mark stands for is done, and loads (by
    generation) that may end early."""

    loads: list[Load] = []
    saves: list[Save] = []
    mark: int = NO_MARK
    cancels: list[int] = []


class Ended(msgspec.Struct, tag="ended", frozen=True):
    """Mover to engine: jobs that ended, and what was counted since the last time."""

    loads: list[LoadDone]
    saves: list[SaveDone]
    counts: dict[str, Any]


Message = Setup | Ready | Begin | Ended
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Message)


def encode(message: Message) -> bytes:
    """Return a message as a frame."""
    return frame(_encoder.encode(message))


def decode(payload: bytes) -> Message:
    """Return the message of a frame; raise ProtocolError for what is none."""
    try:
        return _decoder.decode(payload)
    except msgspec.MsgspecError as error:
        raise ProtocolError(f"between the engine and its mover: {error}") from None


def load_of(job: LoadJob) -> Load:
    """Return a job as it is sent."""
    return Load(
        job.request_id,
        job.generation,
        job.namespace,
        job.names,
        _packed(job.starts),
        _packed(job.ends),
        _packed(job.block_ids),
        job.first_block,
        job.transfer,
        job.patience_s,
        job.part,
    )


def load_job(load: Load) -> LoadJob:
    """Return a job as it was before it was sent."""
    return LoadJob(
        load.request_id,
        load.generation,
        load.namespace,
        load.names,
        _unpacked(load.starts),
        _unpacked(load.ends),
        _unpacked(load.block_ids),
        load.first_block,
        load.transfer,
        load.patience_s,
        load.part,
    )


def save_of(job: SaveJob) -> Save:
    """Return a job as it is sent."""
    return Save(
        job.job_id,
        job.namespace,
        job.names,
        job.parents,
        _packed(job.counts),
        _packed(job.block_ids),
        job.urgent,
        job.part,
    )


def save_job(save: Save) -> SaveJob:
    """Return a job as it was before it was sent."""
    return SaveJob(
        save.job_id,
        save.namespace,
        save.names,
        save.parents,
        _unpacked(save.counts),
        _unpacked(save.block_ids),
        save.urgent,
        save.part,
    )


def table_as_sent(table: RegionTable) -> Table:
    """Return a table as it is sent."""
    columns = np.empty(0, np.int32) if table.columns is None else table.columns
    bases, strides, lengths = (
        each.astype("<u8").tobytes() for each in (table.bases, table.strides, table.lengths)
    )
    return Table(
        bases,
        strides,
        lengths,
        columns.astype("<i4").tobytes(),
        table.width,
        table.num_blocks,
    )


def table_of(sent: Table) -> RegionTable:
    """Return a table with the engine's addresses. Raises ProtocolError."""
    raw = [np.frombuffer(each, "<u8") for each in (sent.bases, sent.strides, sent.lengths)]
    bases, strides, lengths = (each.astype(np.uint64) for each in raw)
    columns = _unpacked(sent.columns).astype(np.intp)
    if not len(bases) == len(strides) == len(lengths) > 0 or len(columns) not in (0, len(bases)):
        raise ProtocolError("the table's columns differ in length")
    if sent.width < 1 or (len(columns) and not 0 <= columns.min() <= columns.max() < sent.width):
        raise ProtocolError("the table's rows are of another width")
    return RegionTable(
        bases,
        strides,
        lengths,
        sent.num_blocks,
        (),
        columns=columns if len(columns) else None,
        width=sent.width,
    )


def moved(addresses: U64, regions: list[Region], mapped: list[int]) -> U64:
    """Return the engine's addresses as this process's, where the regions are mapped to.

    Raises ProtocolError for an address outside all regions.
    """
    order = sorted(range(len(regions)), key=lambda at: regions[at].address)
    starts = np.array([regions[at].address for at in order], np.uint64)
    sizes = np.array([regions[at].nbytes for at in order], np.uint64)
    here = np.array([mapped[at] for at in order], np.uint64)
    found: I64 = np.searchsorted(starts, addresses, "right") - 1
    offsets = addresses - starts[np.maximum(found, 0)]
    if (found < 0).any() or (offsets >= sizes[np.maximum(found, 0)]).any():
        raise ProtocolError("an address outside the engine's regions")
    return np.asarray(here[found] + offsets, np.uint64)


def _packed(array: I32) -> bytes:
    return array.astype("<i4").tobytes()


def _unpacked(raw: bytes) -> I32:
    return np.frombuffer(raw, "<i4").astype(np.int32)
